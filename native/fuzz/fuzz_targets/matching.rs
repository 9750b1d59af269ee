#![no_main]

use hive_qos_native::testing::fuzz::matching::{Step, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|steps: Vec<Step>| run(&steps));
