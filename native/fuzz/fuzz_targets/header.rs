#![no_main]

use hive_qos_native::testing::fuzz::header::run;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| run(data));
