//! How two engines that know each other over QUIC come to share memory: over a Unix socket of an abstract name (unix(7)).
//!
//! A name is found in one network namespace only, so whoever reaches it is on this host. The side that dialled the connection
//! makes the memory and passes it with its token; the other answers with its own. Tokens come from the connection's TLS
//! keys (RFC 8446 7.5), which nobody else has, and both sides are processes of one user.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};

use super::link::Link;
use super::region::{Region, Side};

/// The version of what is in the memory, too: a name that begins otherwise is not dialled.
const NAMES: &str = "hive-qos/shared-memory/1/";
pub const TOKEN_BYTES: usize = 32;

pub type Token = [u8; TOKEN_BYTES];

/// What each side of a connection shows: first the one that dialled it.
#[derive(Clone, Copy)]
pub struct Tokens(pub Token, pub Token);

/// Listen under a name that nobody else has.
pub fn listen() -> io::Result<(UnixListener, String)> {
    let number = || RandomState::new().build_hasher().finish();
    let name = format!("{NAMES}{:016x}{:016x}", number(), number());
    Ok((UnixListener::bind(format!("\0{name}"))?, name))
}

/// Make memory and share it with who listens under a name.
pub async fn dial(name: &str, tokens: &Tokens, eager_bytes: u64) -> io::Result<(Region, UnixStream)> {
    if !name.starts_with(NAMES) || name.contains('\0') {
        return Err(io::Error::other("it speaks another version of it"));
    }
    let socket = UnixStream::connect(format!("\0{name}")).await?;
    check_user(&socket)?;
    let (region, file) = Region::create()?;
    Link::allow_first(&region, Side::Dialler, eager_bytes);
    pass(&socket, &tokens.0, file.as_fd())?;
    let mut answer = [0; TOKEN_BYTES];
    read(&socket, &mut answer).await?;
    if !same(&answer, &tokens.1) {
        return Err(io::Error::other("somebody else answered"));
    }
    Ok((region, socket))
}

/// Take what somebody who dialled shows and passes. Whose token that is has to be found before `Link::welcome`.
pub async fn greet(socket: &UnixStream) -> io::Result<(Token, Region)> {
    check_user(socket)?;
    loop {
        socket.readable().await?;
        match socket.try_io(Interest::READABLE, || take(socket)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            taken => {
                let (token, file) = taken?;
                return Ok((token, Region::adopt(&file)?));
            }
        }
    }
}

/// Whether two tokens are the same, in a time that does not tell where they differ.
pub fn same(one: &Token, other: &Token) -> bool {
    one.iter()
        .zip(other)
        .fold(0, |differs, (one, other)| differs | (one ^ other))
        == 0
}

fn check_user(socket: &UnixStream) -> io::Result<()> {
    let (theirs, ours) = (socket.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if theirs != ours {
        return Err(io::Error::other(format!(
            "it is of user {theirs}, and this one of {ours}"
        )));
    }
    Ok(())
}

fn pass(socket: &UnixStream, token: &Token, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    passed.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(token)], &mut passed, flags)?;
    Ok(())
}

fn take(socket: &UnixStream) -> io::Result<(Token, OwnedFd)> {
    let mut token = [0; TOKEN_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut into = [IoSliceMut::new(&mut token)];
    let bytes = rustix::net::recvmsg(socket, &mut into, &mut passed, flags)?.bytes;
    let mut files = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.next().and_then(|mut files| files.next());
    match file {
        Some(file) if bytes == TOKEN_BYTES => Ok((token, file)),
        _ => Err(io::Error::other("it showed no token, or passed no memory")),
    }
}

async fn read(socket: &UnixStream, into: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        socket.readable().await?;
        match socket.try_read(&mut into[at..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => at += bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
