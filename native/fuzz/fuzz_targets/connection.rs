#![no_main]

use hive_qos_native::fuzzed::connection::{Input, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: Input| run(input));
