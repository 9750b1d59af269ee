//! What fuzzers feed: for each target in `fuzz/fuzz_targets` a function of its input, which panics where a promise is broken.
//!
//! They stand here so that an ordinary `cargo test` can run them too: over every seed that is kept, and over what once
//! broke a target and has become a seed since. Of such a one, whose name begins with `broke-`, nothing else is expected.

pub mod connection;
pub mod header;
pub mod matching;
pub mod stream_readers;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::panic::catch_unwind;
    use std::path::PathBuf;

    use arbitrary::{Arbitrary, Unstructured};

    use super::*;
    use crate::wire::{Code, ControlReader, decode_header, decode_varint, split_frame, split_header};

    fn folder(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
    }

    /// The names in a folder of `fuzz/`, without what comes behind a dot.
    fn names(of: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(folder(of)).unwrap_or_else(|error| panic!("{of}: {error}"));
        entries
            .map(|entry| {
                entry
                    .unwrap()
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect()
    }

    /// The seeds of a target: name and content.
    fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
        let of = format!("seeds/{target}");
        let found: Vec<_> = names(&of)
            .into_iter()
            .map(|name| {
                let content = fs::read(folder(&of).join(&name)).unwrap();
                (name, content)
            })
            .collect();
        assert!(!found.is_empty(), "no seeds of {target}");
        found
    }

    /// As libFuzzer's macro makes a value of bytes; a seed that does not make one would be passed over in silence.
    fn value<'a, T: Arbitrary<'a>>(name: &str, content: &'a [u8]) -> T {
        assert!(content.len() >= T::size_hint(0).0, "{name} is too short to be anything");
        T::arbitrary_take_rest(Unstructured::new(content)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn every_target_has_seeds_and_every_seed_a_target() {
        let replayed = ["connection", "header", "matching", "stream_readers"].map(str::to_owned);
        assert_eq!(names("fuzz_targets"), BTreeSet::from(replayed));
        assert_eq!(names("fuzz_targets"), names("seeds"));
    }

    /// Whether it once broke its target, which names it so.
    fn broke(name: &str) -> bool {
        name.starts_with("broke-")
    }

    #[test]
    fn headers_of_seeds_are_read_or_refused_as_their_names_say() {
        for (name, content) in seeds("header") {
            header_seed(&name, &content);
        }
    }

    fn header_seed(name: &str, content: &[u8]) {
        header::run(content);
        if name.starts_with("varint-") {
            assert_eq!(
                decode_varint(content).map(|(_, length)| length),
                Some(content.len()),
                "{name}"
            );
        } else if name.starts_with("control-") {
            assert!(
                matches!(split_frame(content), Ok(Some((0, _, end))) if end == content.len()),
                "{name}"
            );
        } else if name.starts_with("bad-header-") {
            let refused = decode_header(content).expect_err(name);
            assert!(
                (0x11..=0x16).contains(&(refused.code as u32)),
                "{name}: {}",
                refused.reason
            );
        } else if name.starts_with("header-") {
            let (start, end) = split_header(content).unwrap().expect(name);
            assert_eq!(end, content.len(), "{name}");
            decode_header(&content[start..end]).expect(name);
        } else {
            assert!(broke(name), "{name} says nothing of what it is");
        }
    }

    #[test]
    fn streams_of_seeds_begin_as_their_names_say_however_they_are_cut() {
        for (name, content) in seeds("stream_readers") {
            stream_seed(&name, &content);
        }
    }

    fn stream_seed(name: &str, content: &[u8]) {
        stream_readers::run(content);
        if broke(name) {
            return;
        }
        let [kind, _, stream @ ..] = content else {
            panic!("{name} is no stream")
        };
        for cuts in 0..=u8::MAX {
            stream_readers::run(&[&[*kind, cuts], stream].concat());
        }
        let (refused, whole) = match kind {
            0 => control(stream),
            _ => message(stream),
        };
        let expected = match name {
            "control-hello-twice" => Some(Code::ProtocolViolation),
            "control-frame-too-large" => Some(Code::ProtocolViolation),
            "message-bad-unknown-dtype" => Some(Code::DtypeUnknown),
            name if name.starts_with("message-bad-") => Some(Code::HeaderInvalid),
            _ => None,
        };
        assert_eq!(refused, expected, "{name}");
        assert_eq!(whole, !name.ends_with("-half") && refused.is_none(), "{name}");
    }

    /// Why a control stream is refused, and whether it ends with a frame.
    fn control(stream: &[u8]) -> (Option<Code>, bool) {
        let mut reader = ControlReader::default();
        let refused = reader.take(stream, |_| {}).err().map(|found| found.code);
        (refused, refused.is_none() && reader.kept() == 0)
    }

    /// Why a message is refused, and whether its header is there.
    fn message(stream: &[u8]) -> (Option<Code>, bool) {
        let read = split_header(stream).and_then(|found| match found {
            Some((start, end)) => decode_header(&stream[start..end]).map(|_| true),
            None => Ok(false),
        });
        match read {
            Ok(whole) => (None, whole),
            Err(violation) => (Some(violation.code), false),
        }
    }

    #[test]
    fn the_matcher_keeps_its_promises_over_all_seeds() {
        for (name, content) in seeds("matching") {
            matching_seed(&name, &content);
        }
    }

    fn matching_seed(name: &str, content: &[u8]) {
        let steps: Vec<matching::Step> = value(name, content);
        assert!(broke(name) || steps.len() >= 20, "{name} does nothing: {steps:?}");
        matching::run(&steps);
    }

    #[test]
    fn connections_with_hostile_peers_end_over_all_seeds() {
        for (name, content) in seeds("connection") {
            connection::run(value(&name, &content));
        }
    }

    #[test]
    fn of_what_broke_a_target_nothing_is_expected_but_that_it_runs() {
        type Replay = fn(&str, &[u8]);
        let replays: [(&str, Replay); 3] = [
            ("header-0", header_seed),
            ("message-0", stream_seed),
            ("steps-0", matching_seed),
        ];
        for (name, replay) in replays {
            assert!(catch_unwind(|| replay(name, b"")).is_err(), "{name}");
            replay(&format!("broke-{name}"), b"");
        }
    }
}
