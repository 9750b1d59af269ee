#![no_main]

use hive_qos_native::testing::fuzz::stream_readers::run;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| run(data));
