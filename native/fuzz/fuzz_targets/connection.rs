#![no_main]

use hive_qos_native::testing::fuzz::connection::{Input, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: Input| run(input));
