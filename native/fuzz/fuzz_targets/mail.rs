#![no_main]

use hive_qos_native::fuzzed::mail::{Step, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|steps: Vec<Step>| run(&steps));
