use std::os::unix::net::UnixStream as Socket;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::*;

const EAGER_BYTES: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(20);

/// Both sides of a link, in one process.
fn sides() -> [(Arc<Link>, Reader); 2] {
    let (region, file) = Region::create().unwrap();
    let regions = [region, Region::adopt(&file).unwrap()];
    for (region, side) in regions.iter().zip([Side::Dialler, Side::Dialled]) {
        Link::allow_first(region, side, EAGER_BYTES);
    }
    let (one, other) = Socket::pair().unwrap();
    let mut made = regions
        .into_iter()
        .zip([(Side::Dialler, one), (Side::Dialled, other)])
        .map(|(region, (side, socket))| {
            socket.set_nonblocking(true).unwrap();
            Link::new(region, side, socket).unwrap()
        });
    [made.next().unwrap(), made.next().unwrap()]
}

/// Read until a frame of a kind was taken: what it and those before it carried.
async fn read(link: &Arc<Link>, reader: &mut Reader, until: Kind) -> Vec<(Kind, usize)> {
    let mut taken = Vec::new();
    loop {
        while let Some(frame) = reader.front().unwrap() {
            taken.push((frame.kind, frame.length));
            link.released(reader.release(frame));
            if frame.kind == until {
                return taken;
            }
        }
        link.look().unwrap();
        assert!(link.woken(reader).await.unwrap(), "the other side is there");
    }
}

#[tokio::test]
async fn what_is_not_asked_for_waits_until_it_is_accepted_and_a_send_ends_when_it_was_read() {
    let [(from, mut answers), (to, mut reader)] = sides();
    let payload = vec![7; 5 * RING_BYTES];
    let mut outgoing = Outgoing::new(from.clone());
    let send = outgoing.send(3, b"header", &payload);
    let receive = async {
        let first = read(&to, &mut reader, Kind::Data).await;
        assert_eq!(first, [(Kind::Begin, 6), (Kind::Data, EAGER_BYTES as usize)]);
        assert!(reader.front().unwrap().is_none());
        to.answer(Kind::Accept, 0, 0).unwrap();
        let mut left = payload.len() - EAGER_BYTES as usize;
        while left > 0 {
            left -= read(&to, &mut reader, Kind::Data).await[0].1;
        }
    };
    let answered = async {
        loop {
            while let Some(frame) = answers.front().unwrap() {
                from.answered(frame, 0);
                from.released(answers.release(frame));
            }
            from.look().unwrap();
            from.woken(&answers).await.unwrap();
        }
    };
    let both = async { tokio::join!(send, receive).0 };
    let ended = timeout(PATIENCE, async {
        tokio::select! { ended = both => ended, () = answered => unreachable!() }
    });
    assert!(ended.await.expect("it does not hang").is_ok());
    assert_eq!(from.sent_bytes.load(Relaxed), payload.len() as u64);
}

#[tokio::test]
async fn a_send_that_is_dropped_half_way_is_reset_and_one_that_had_not_begun_is_not() {
    let [(from, _answers), (to, mut reader)] = sides();
    let payload = [7; 2 * EAGER_BYTES as usize];
    {
        let mut outgoing = Outgoing::new(from.clone());
        let mut send = pin!(outgoing.send(3, b"header", &payload));
        assert!(timeout(Duration::ZERO, &mut send).await.is_err());
    }
    drop(Outgoing::new(from.clone()));
    let taken = timeout(PATIENCE, read(&to, &mut reader, Kind::Reset)).await.unwrap();
    let kinds: Vec<Kind> = taken.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [Kind::Begin, Kind::Data, Kind::Reset]);
    assert!(reader.front().unwrap().is_none());
}

#[tokio::test]
async fn what_the_peer_has_not_read_is_lost_with_the_link_and_what_it_has_is_sent() {
    let [(from, _answers), (to, mut reader)] = sides();
    let mut messages = [Outgoing::new(from.clone()), Outgoing::new(from.clone())];
    let [first, second] = &mut messages;
    let (mut first, mut second) = (
        pin!(first.send(3, b"header", b"first")),
        pin!(second.send(3, b"header", b"second")),
    );
    assert!(timeout(Duration::ZERO, &mut first).await.is_err());
    assert!(timeout(Duration::ZERO, &mut second).await.is_err());
    read(&to, &mut reader, Kind::Data).await;
    from.end();
    assert!(first.await.is_ok());
    assert!(matches!(second.await, Err(Unsent::Lost)));
    let mut late = Outgoing::new(from.clone());
    assert!(matches!(late.send(3, b"header", b"late").await, Err(Unsent::Lost)));
}

#[tokio::test]
async fn what_was_half_written_when_the_link_ended_is_not_reset() {
    let [(from, _answers), (to, mut reader)] = sides();
    let payload = [7; 2 * EAGER_BYTES as usize];
    {
        let mut outgoing = Outgoing::new(from.clone());
        let mut send = pin!(outgoing.send(3, b"header", &payload));
        assert!(timeout(Duration::ZERO, &mut send).await.is_err());
        from.end();
        assert!(matches!(send.await, Err(Unsent::Lost)));
    }
    read(&to, &mut reader, Kind::Data).await;
    assert!(reader.front().unwrap().is_none());
}

#[tokio::test]
async fn a_peer_that_goes_is_noticed() {
    let [(here, reader), gone] = sides();
    drop(gone);
    assert!(!timeout(PATIENCE, here.woken(&reader)).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_side_that_lets_go_is_told_from_a_process_that_has_ended() {
    let [(kept, reader), (dropped, _)] = sides();
    drop(dropped);
    while kept.woken(&reader).await.unwrap() {}
    assert!(!kept.process_ended(), "it is this process");
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let number = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    let process = pidfd_open(number, PidfdFlags::empty()).unwrap();
    let since = std::time::Instant::now();
    while !has_ended(&process) {
        assert!(since.elapsed() < PATIENCE);
    }
    child.wait().unwrap();
}
