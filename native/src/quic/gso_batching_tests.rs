use super::*;

const PACKET: usize = 1451;
const WHOLE: usize = 43 * PACKET;

fn limits() -> Limits {
    Limits {
        window: 20 * WHOLE as u64,
        round_trip: Duration::from_millis(10),
        packet_bytes: PACKET,
        whole: WHOLE,
    }
}

/// The pacer has just cut something short, and nothing hurries.
fn cut(limits: &Limits, now: Instant) -> Filling {
    let mut filling = Filling::default();
    filling.made(PACKET, limits, now, Some(now + PACED));
    filling
}

#[test]
fn behind_what_the_pacer_cut_short_whole_batches_go_as_they_become_due() {
    let (now, limits) = (Instant::now(), limits());
    let Pacer { rate, burst } = limits.pacer().unwrap();
    let takes = Duration::from_secs_f64((WHOLE + PACKET) as f64 / rate);
    assert_eq!(Filling::default().wait(&limits, true, now), None);
    let mut filling = cut(&limits, now);
    assert_eq!(filling.wait(&limits, true, now), Some(now + takes));
    assert_eq!(filling.wait(&limits, true, now + takes), None);
    // Of what came together while nobody asked, the part of a batch that is left counts for the next one.
    let late = now + 5 * takes / 2;
    for _ in 0..2 {
        assert_eq!(filling.wait(&limits, true, late), None);
        filling.made(WHOLE, &limits, late, None);
    }
    let due = filling.wait(&limits, true, late).unwrap();
    assert!(
        late + takes / 3 < due && due < late + takes / 2 + takes / 10,
        "{:?} of {takes:?}",
        due - late
    );
    // And no more than the pacer keeps.
    let late = now + 1000 * takes;
    let mut count = 0;
    while filling.wait(&limits, true, late).is_none() {
        filling.made(WHOLE, &limits, late, None);
        count += 1;
    }
    assert_eq!(count, burst as usize / (WHOLE + PACKET));
}

#[test]
fn a_batch_is_waited_for_less_than_a_millisecond_on_paths_of_about_a_gigabit_a_second() {
    let now = Instant::now();
    let mut waited = Vec::new();
    for batches in [1, 5, 6, 20, 100, 1000] {
        for round_trip in [0, 100, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 500_000] {
            let limits = Limits {
                window: batches * WHOLE as u64,
                round_trip: Duration::from_micros(round_trip),
                ..limits()
            };
            if let Some(until) = cut(&limits, now).wait(&limits, true, now) {
                let wait = until - now;
                let bits = limits.window as f64 * 8.0 / limits.round_trip.as_secs_f64();
                assert!((0.49e9..1.65e9).contains(&bits), "{limits:?}");
                assert!(
                    (Duration::from_micros(250)..Duration::from_micros(850)).contains(&wait),
                    "{limits:?}: {wait:?}"
                );
                waited.push(batches);
            }
        }
    }
    waited.dedup();
    assert_eq!(waited, [6, 20, 100, 1000]);
}

#[test]
fn nothing_waits_where_the_path_is_not_known_or_few_packets_leave_at_once_or_something_else_paces() {
    let now = Instant::now();
    let waits = |limits: Limits| cut(&limits, now).wait(&limits, true, now).is_some();
    assert!(waits(limits()));
    assert!(!waits(Limits { window: 0, ..limits() })); // something else paces
    assert!(!waits(Limits {
        round_trip: Duration::ZERO,
        ..limits()
    }));
    assert!(!waits(Limits {
        whole: BATCH_BYTES_MIN - 1,
        ..limits()
    }));
}

#[test]
fn nothing_waits_where_the_pacer_has_held_nothing_back() {
    let (now, limits) = (Instant::now(), limits());
    let mut filling = Filling::default();
    for bytes in [WHOLE, WHOLE, 10 * PACKET, 0] {
        filling.made(bytes, &limits, now, None); // short: the window is full, or all has been sent
        assert!(!filling.may_wait(true));
    }
}

#[test]
fn the_end_of_a_message_does_not_wait_once_the_stack_has_all_of_it() {
    let (now, limits) = (Instant::now(), limits());
    let filling = cut(&limits, now);
    assert!(filling.wait(&limits, true, now).is_some());
    assert_eq!(filling.wait(&limits, false, now), None);
}

#[test]
fn what_hurries_goes_on_hurrying_until_it_has_left() {
    let (now, limits) = (Instant::now(), limits());
    let mut filling = cut(&limits, now);
    filling.hurry(SMALL_BYTES);
    assert_eq!(filling.wait(&limits, true, now), None);
    // Whatever is asked while the pacer gives no leave, or leave for a packet.
    let mut left = 0;
    for bytes in [0, 0, PACKET, 0, 20 * PACKET, WHOLE - 21 * PACKET] {
        filling.made(bytes, &limits, now, Some(now + PACED));
        left += bytes;
        assert!(left < SMALL_BYTES);
        assert_eq!(filling.wait(&limits, true, now), None, "after {left} bytes");
    }
    filling.made(SMALL_BYTES - left, &limits, now, Some(now + PACED));
    assert!(filling.wait(&limits, true, now).is_some());
}

#[test]
fn a_message_of_64_kib_does_not_wait_however_long_its_header() {
    let (now, limits) = (Instant::now(), limits());
    let longest = INTEGER_BYTES_MAX + HEADER_BYTES_MAX;
    let waits = |bytes, taken| {
        let mut filling = cut(&limits, now);
        filling.wrote(bytes, taken);
        filling.wait(&limits, true, now).is_some()
    };
    for header in [0, 40, longest] {
        assert!(
            !waits(header + 65536, header + 65536),
            "behind a header of {header} bytes"
        );
    }
    assert!(waits(longest + 65537, longest + 65537));
    assert!(waits(1 << 20, PACKET)); // of which the stack takes little
}

#[test]
fn what_was_lost_and_what_is_answered_take_the_next_packet() {
    let (now, limits) = (Instant::now(), limits());
    let mut filling = cut(&limits, now);
    filling.hear(0);
    assert!(filling.wait(&limits, true, now).is_some());
    filling.hear(1);
    assert_eq!(filling.wait(&limits, true, now), None);
    filling.made(0, &limits, now, Some(now + PACED)); // no leave
    assert_eq!(filling.wait(&limits, true, now), None);
    filling.made(PACKET, &limits, now, Some(now + PACED));
    filling.hear(1);
    assert!(filling.wait(&limits, true, now).is_some());
}

#[test]
fn deadlines_do_not_wait_but_for_that_of_the_pacer() {
    let (now, limits) = (Instant::now(), limits());
    let mut filling = cut(&limits, now);
    filling.time_out(Some(now + PACED), now + PACED);
    assert!(filling.wait(&limits, true, now).is_some());
    filling.time_out(Some(now + 2 * PACED), now + PACED); // it has not come
    assert!(filling.wait(&limits, true, now).is_some());
    filling.time_out(Some(now + PACED / 2), now + PACED);
    assert_eq!(filling.wait(&limits, true, now), None);
}
