//! What the kernel joins on its way in is what was sent, over real sockets: contents, order, marks, peers, and the rooms that
//! it is read into.
//!
//! A piece that is sent with a segment's size passes loopback in one, and the kernel says where to cut it: as where a
//! network card has joined what came. Where the kernel joins nothing these tests fail, for then they would show nothing.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use quinn_udp::EcnCodepoint;

use super::*;

const SIZE: usize = 1000;
/// An unprivileged socket has room for 400 kB of the kernel's memory: so much may wait in it before it is read.
const AT_ONCE: usize = 4;

fn bound() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

fn adopt(socket: &UdpSocket) -> Socket {
    // SAFETY: the test keeps `socket` as long as what it gets.
    unsafe { Socket::adopt(socket.as_raw_fd()) }.unwrap()
}

/// So many bytes of which each is another than the one before, and others for each number.
fn content(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (7 * number + 3 * at + at / 251) as u8).collect()
}

/// One piece, of datagrams of `SIZE` bytes where it is longer.
fn send_piece(from: &Socket, to: &UdpSocket, contents: &[u8], ecn: Option<EcnCodepoint>) {
    from.send(&Transmit {
        destination: to.local_addr().unwrap(),
        ecn,
        contents,
        segment_size: (contents.len() > SIZE).then_some(SIZE),
        src_ip: None,
    });
}

/// What was read at once.
struct Piece {
    from: SocketAddr,
    ecn: Option<EcnCodepoint>,
    stride: usize,
    data: BytesMut,
}

impl Piece {
    /// The lengths of its datagrams.
    fn lengths(&self) -> Vec<usize> {
        self.data.chunks(self.stride.max(1)).map(<[u8]>::len).collect()
    }
}

/// Read until there are so many bytes, and so many pieces.
fn read_pieces(inbox: &mut Inbox, socket: &Socket, bytes: usize, count: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut found_bytes, since) = (0, Instant::now());
    while found_bytes < bytes || pieces.len() < count {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "{found_bytes} bytes of {bytes} came, in {} pieces of {count}",
            pieces.len()
        );
        inbox.read(socket, |found, data| {
            assert_eq!(found.len, data.len());
            found_bytes += data.len();
            pieces.push(Piece {
                from: found.addr,
                ecn: found.ecn,
                stride: found.stride,
                data,
            });
        });
    }
    pieces
}

/// Without it none of these tests says anything of what is joined.
fn assert_joined(pieces: &[Piece]) {
    assert!(
        pieces.iter().any(|piece| piece.stride < piece.data.len()),
        "the kernel of this machine joins no datagrams"
    );
}

/// Whatever was given back to the allocator is somebody else's from now on.
fn take_what_is_free(taken: &mut Vec<Vec<u8>>, count: usize) {
    taken.extend((0..count).map(|_| Vec::with_capacity(ROOM_BYTES)));
}

/// Two sockets, and an inbox that reads large pieces.
struct Ends {
    a: UdpSocket,
    b: UdpSocket,
    sender: Socket,
    receiver: Socket,
    inbox: Inbox,
}

impl Ends {
    fn new() -> Self {
        let (a, b) = (bound(), bound());
        let (sender, receiver) = (adopt(&a), adopt(&b));
        let mut ends = Self {
            a,
            b,
            sender,
            receiver,
            inbox: Inbox::new(),
        };
        assert!(!ends.inbox.large);
        let pieces = ends.pass(&[content(0, 40 * SIZE)], None);
        assert_joined(&pieces);
        assert!(ends.inbox.large, "what came was not large, read as small datagrams");
        ends
    }

    /// Send each, read all of it.
    fn pass(&mut self, contents: &[Vec<u8>], ecn: Option<EcnCodepoint>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for some in contents.chunks(AT_ONCE) {
            for one in some {
                send_piece(&self.sender, &self.b, one, ecn);
            }
            let bytes = some.iter().map(Vec::len).sum();
            pieces.extend(read_pieces(&mut self.inbox, &self.receiver, bytes, some.len()));
        }
        pieces
    }
}

#[tokio::test]
async fn what_was_joined_is_cut_where_it_was_joined() {
    let mut ends = Ends::new();
    // As many whole datagrams as there are, and one that is shorter: by a byte, by most of it, not at all.
    let lengths: Vec<usize> = (2..40)
        .map(|count| count * SIZE - [0, 1, 667, SIZE - 1][count % 4])
        .collect();
    let sent: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(number, bytes)| content(number, *bytes))
        .collect();
    let pieces = ends.pass(&sent, None);
    assert_eq!(pieces.len(), sent.len());
    for (piece, sent) in pieces.iter().zip(&sent) {
        let datagrams: Vec<_> = sent.chunks(SIZE).map(<[u8]>::len).collect();
        assert_eq!(piece.lengths(), datagrams);
        assert!(piece.data == sent, "{} bytes came as others", sent.len());
        assert_eq!(piece.from, ends.a.local_addr().unwrap());
        assert_eq!(
            (piece.stride, piece.stride < piece.data.len()),
            (SIZE, true),
            "it was not joined"
        );
    }
}

#[tokio::test]
async fn each_piece_has_the_mark_that_it_was_sent_with() {
    let mut ends = Ends::new();
    let marks = [
        Some(EcnCodepoint::Ect0),
        Some(EcnCodepoint::Ce),
        None,
        Some(EcnCodepoint::Ect1),
    ];
    for round in 0..4 {
        let mut expected = Vec::new();
        for number in 0..AT_ONCE {
            let ecn = marks[(number + round) % marks.len()];
            send_piece(&ends.sender, &ends.b, &content(number, (5 + number) * SIZE), ecn);
            expected.push(((5 + number) * SIZE, ecn));
        }
        let bytes = expected.iter().map(|(bytes, _)| bytes).sum();
        let pieces = read_pieces(&mut ends.inbox, &ends.receiver, bytes, expected.len());
        assert_joined(&pieces);
        let found: Vec<_> = pieces.iter().map(|piece| (piece.data.len(), piece.ecn)).collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn pieces_of_many_peers_stay_apart_and_in_their_order() {
    let mut ends = Ends::new();
    let peers: Vec<_> = (0..4).map(|_| bound()).collect();
    let senders: Vec<_> = peers.iter().map(adopt).collect();
    let mut found: HashMap<SocketAddr, Vec<u8>> = HashMap::new();
    let mut sent: HashMap<SocketAddr, Vec<u8>> = HashMap::new();
    for round in 0..12 {
        let mut bytes = 0;
        for (number, (peer, sender)) in peers.iter().zip(&senders).enumerate() {
            // Some say one small thing in between.
            let size = if (round + number) % 3 == 0 {
                70
            } else {
                (8 + number) * SIZE - round
            };
            let one = content(100 * number + round, size);
            send_piece(sender, &ends.b, &one, None);
            bytes += one.len();
            sent.entry(peer.local_addr().unwrap()).or_default().extend(one);
        }
        let pieces = read_pieces(&mut ends.inbox, &ends.receiver, bytes, peers.len());
        assert_joined(&pieces);
        for piece in pieces {
            found.entry(piece.from).or_default().extend_from_slice(&piece.data);
        }
    }
    assert!(found == sent, "what peers sent is mixed up");
}

#[tokio::test]
async fn odd_pieces_are_whole_and_small_ones_end_the_reading_of_large_ones() {
    let mut ends = Ends::new();
    // Nothing, a byte, two that are joined and yet copied out, the longest datagram, and the longest that is joined.
    let odd = [0, 1, 2 * SIZE - 200, SIZE, (ends.sender.segments_max(SIZE)) * SIZE];
    for (number, bytes) in odd.into_iter().enumerate() {
        let sent = content(number, bytes);
        let pieces = ends.pass(std::slice::from_ref(&sent), None);
        assert_eq!(pieces.len(), 1, "{bytes} bytes");
        assert!(pieces[0].data == sent, "{bytes} bytes came as others");
        assert_eq!(
            pieces[0].stride < bytes,
            bytes > SIZE,
            "{bytes} bytes in strides of {}",
            pieces[0].stride
        );
        ends.pass(&[content(0, 40 * SIZE)], None);
        assert!(ends.inbox.large, "after {bytes} bytes and a large piece");
    }
    for large in [true, false] {
        assert_eq!(ends.inbox.large, large);
        let longest = content(9, PAYLOAD_BYTES_MAX);
        ends.sender.send(&Transmit {
            destination: ends.b.local_addr().unwrap(),
            ecn: None,
            contents: &longest,
            segment_size: None,
            src_ip: None,
        });
        let pieces = read_pieces(&mut ends.inbox, &ends.receiver, longest.len(), 1);
        assert!(
            pieces.len() == 1 && pieces[0].data == longest,
            "no room for the longest datagram"
        );
        let few: Vec<_> = (0..AT_ONCE).map(|number| content(number, 20)).collect();
        let pieces = ends.pass(&few, None);
        assert!(
            pieces
                .iter()
                .map(|piece| &piece.data[..])
                .eq(few.iter().map(|one| &one[..]))
        );
        assert!(!ends.inbox.large, "small datagrams are read as large ones");
    }
}

#[tokio::test]
async fn rooms_are_used_again_and_no_more_of_them_kept_than_may_be() {
    let mut ends = Ends::new();
    let (mut rooms, mut taken) = (HashSet::new(), Vec::new());
    for number in 0..20 {
        let pieces = ends.pass(&vec![content(number, 20 * SIZE); AT_ONCE], None);
        assert_joined(&pieces);
        rooms.extend(pieces.iter().map(|piece| piece.data.as_ptr()));
        drop(pieces);
        take_what_is_free(&mut taken, 2 * LARGE_AT_ONCE);
    }
    assert!(
        rooms.len() <= LARGE_AT_ONCE,
        "{} rooms, of which nobody looks at one",
        rooms.len()
    );
    // Now everybody looks at what came, as streams do that nobody reads.
    let sent: Vec<_> = (0..80).map(|number| content(number, 20 * SIZE)).collect();
    let mut kept = Vec::new();
    for some in sent.chunks(AT_ONCE) {
        kept.extend(ends.pass(some, None));
        assert!(ends.inbox.rooms.len() <= ROOMS_MAX + LARGE_AT_ONCE);
    }
    let apart: HashSet<_> = kept.iter().map(|piece| piece.data.as_ptr()).collect();
    assert_eq!(apart.len(), kept.len(), "a room was used while somebody looked at it");
    assert!(
        kept.iter().zip(&sent).all(|(piece, sent)| piece.data == sent),
        "what was kept has changed"
    );
    drop(kept);
    take_what_is_free(&mut taken, sent.len());
    let pieces = ends.pass(&sent[..AT_ONCE], None);
    assert!(
        pieces.iter().all(|piece| apart.contains(&piece.data.as_ptr())),
        "free rooms are not used again"
    );
}

#[tokio::test]
async fn what_was_read_stays_as_it_is_while_more_is_read() {
    let (a, b) = (bound(), bound());
    let (sender, receiver) = (adopt(&a), adopt(&b));
    let mut inbox = Inbox::new();
    let mut kept = Vec::new();
    for round in 0..3 {
        // The first batch is read as small datagrams, the next ones as large pieces.
        let sent = content(round, 40 * SIZE);
        send_piece(&sender, &b, &sent, None);
        kept.push((read_pieces(&mut inbox, &receiver, sent.len(), 1), sent));
    }
    let sent = content(9, SIZE); // a small one among large ones
    send_piece(&sender, &b, &sent, None);
    kept.push((read_pieces(&mut inbox, &receiver, sent.len(), 1), sent));
    for (pieces, sent) in kept {
        assert!(pieces.len() == 1 && pieces[0].data == sent);
    }
}

#[tokio::test]
async fn a_room_that_nobody_looks_at_is_used_again() {
    let mut inbox = Inbox::new();
    let mut room = inbox.room();
    let address = room.as_ptr();
    let looked_at = room.split_to(3000).freeze();
    inbox.rooms.push_back(room);
    assert_ne!(inbox.room().as_ptr(), address);
    drop(looked_at);
    assert_eq!(inbox.room().as_ptr(), address);
}

#[tokio::test]
async fn what_goes_and_comes_behind_a_refused_datagram_is_not_lost() {
    let (a, b, gone) = (bound(), bound(), bound());
    let socket = adopt(&a);
    let nobody = gone.local_addr().unwrap();
    drop(gone);
    let (mut refused, mut inbox, since) = (Vec::new(), Inbox::new(), Instant::now());
    let mut sent = 0;
    while refused.len() < 6 {
        assert!(since.elapsed() < Duration::from_secs(20));
        a.send_to(b"nobody takes this", nobody).unwrap(); // the kernel tells whoever sends or reads next
        if sent % 2 == 0 {
            send_piece(&socket, &b, &content(sent, 200), None);
            sent += 1;
        } else {
            b.send_to(&content(sent, 100), a.local_addr().unwrap()).unwrap();
            let came = read_pieces(&mut inbox, &socket, 100, 1);
            assert_eq!(&came[0].data[..], content(sent, 100));
            sent += 1;
        }
        refused.extend(socket.refusals());
    }
    assert!(
        refused
            .iter()
            .all(|one| (one.to, one.datagram()) == (nobody, &b"nobody takes thi"[..]))
    );
    b.set_nonblocking(true).unwrap();
    let mut buffer = [0; 300];
    for number in (0..sent).step_by(2) {
        let bytes = b.recv(&mut buffer).unwrap();
        assert_eq!(buffer[..bytes], content(number, 200));
    }
}
