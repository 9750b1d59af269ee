//! The streams of a connection as tasks use them. Each belongs to one task.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

use bytes::Bytes;
use quinn_proto::{self as proto, Dir, StreamId, VarInt, Written};

use super::connection::{Connection, Ended};

impl Connection {
    /// Open a stream to send on, when the peer allows one.
    pub async fn open_uni(&self) -> Result<SendStream, Ended> {
        loop {
            let allowed = self.0.allowed.notified();
            {
                let mut state = self.lock();
                if let Some(ended) = &state.ended {
                    return Err(ended.clone());
                }
                if let Some(id) = state.stack.as_mut().and_then(|stack| stack.streams().open(Dir::Uni)) {
                    return Ok(SendStream::new(self.clone(), id));
                }
            }
            allowed.await;
        }
    }

    /// Take the next stream that the peer has opened. Those that came before the end are given out after it.
    pub async fn accept_uni(&self) -> Result<RecvStream, Ended> {
        loop {
            let opened = self.0.opened.notified();
            {
                let mut state = self.lock();
                if let Some(id) = state.stack.as_mut().and_then(|stack| stack.streams().accept(Dir::Uni)) {
                    self.mark_dirty(&mut state); // there may be credit for another stream to give
                    return Ok(RecvStream::new(self.clone(), id));
                }
                if let Some(ended) = &state.ended {
                    return Err(ended.clone());
                }
            }
            opened.await;
        }
    }
}

/// Why nothing more can be written to a stream.
#[derive(Debug)]
pub enum WriteError {
    /// The peer wants no more of it.
    Stopped(VarInt),
    Lost,
}

/// A stream of ours.
pub struct SendStream {
    connection: Connection,
    id: StreamId,
}

impl SendStream {
    pub fn new(connection: Connection, id: StreamId) -> Self {
        Self { connection, id }
    }

    /// The stack serves higher numbers first.
    pub fn set_priority(&self, priority: i32) {
        if let Some(stack) = &mut self.connection.lock().stack {
            let _ = stack.send_stream(self.id).set_priority(priority); // it may have been stopped
        }
    }

    /// Hand over as much as there is credit for; what is taken is cut off `chunks`.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, chunks: &mut [Bytes]) -> Poll<Result<Written, WriteError>> {
        let mut state = self.connection.lock();
        if state.ended.is_some() {
            return Poll::Ready(Err(WriteError::Lost));
        }
        let Some(stack) = &mut state.stack else {
            return Poll::Ready(Err(WriteError::Lost));
        };
        match stack.send_stream(self.id).write_chunks(chunks) {
            Ok(written) => {
                self.connection.mark_dirty(&mut state);
                Poll::Ready(Ok(written))
            }
            Err(proto::WriteError::Blocked) => {
                state.writers.insert(self.id, cx.waker().clone());
                self.connection.mark_dirty(&mut state); // the peer may be told that it holds us up
                Poll::Pending
            }
            Err(proto::WriteError::Stopped(code)) => Poll::Ready(Err(WriteError::Stopped(code))),
            Err(proto::WriteError::ClosedStream) => Poll::Ready(Err(WriteError::Lost)),
        }
    }

    /// Hand over all of `chunk`.
    pub async fn write_all(&mut self, chunk: Bytes) -> Result<(), WriteError> {
        let mut chunks = [chunk];
        while !chunks[0].is_empty() {
            poll_fn(|cx| self.poll_write(cx, &mut chunks)).await?;
        }
        Ok(())
    }

    /// There is no more to come. How that goes, `stopped` tells.
    pub fn finish(&mut self) {
        let mut state = self.connection.lock();
        if let Some(stack) = &mut state.stack {
            let _ = stack.send_stream(self.id).finish();
        }
        self.connection.mark_dirty(&mut state);
    }

    /// Give it up: what has not been sent is let go of.
    pub fn reset(&mut self, code: VarInt) {
        let mut state = self.connection.lock();
        if let Some(stack) = &mut state.stack {
            let _ = stack.send_stream(self.id).reset(code); // it may be over
        }
        self.connection.mark_dirty(&mut state);
    }

    /// Wait until the peer has acknowledged all of it (None), or wants no more of it.
    pub async fn stopped(&mut self) -> Result<Option<VarInt>, Ended> {
        poll_fn(|cx| {
            let mut state = self.connection.lock();
            if let Some(stack) = &mut state.stack {
                match stack.send_stream(self.id).stopped() {
                    Err(_) => return Poll::Ready(Ok(None)),
                    Ok(Some(code)) => return Poll::Ready(Ok(Some(code))),
                    Ok(None) => {}
                }
            }
            if let Some(ended) = &state.ended {
                return Poll::Ready(Err(ended.clone()));
            }
            state.writers.insert(self.id, cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.connection.lock().writers.remove(&self.id);
        if std::thread::panicking() {
            // Its task will not: the stack must not keep what was lent beyond the end that is told. Where the stack is what
            // panicked, the lock above has given it up; a panic that left here now would end the process.
            let _ = catch_unwind(AssertUnwindSafe(|| self.reset(VarInt::from_u32(0))));
        }
    }
}

/// Why nothing more can be read from a stream.
#[derive(Debug)]
pub enum ReadError {
    /// The peer gave it up.
    Reset(VarInt),
    Lost,
}

/// A stream of the peer's; dropped before its end it tells the peer to stop.
pub struct RecvStream {
    connection: Connection,
    id: StreamId,
    over: bool,
    reset: Option<VarInt>,
}

impl RecvStream {
    pub fn new(connection: Connection, id: StreamId) -> Self {
        Self {
            connection,
            id,
            over: false,
            reset: None,
        }
    }

    /// The next bytes, at most `length` of them; None at the end.
    pub async fn read_chunk(&mut self, length: usize) -> Result<Option<Bytes>, ReadError> {
        let mut chunk = [Bytes::new()];
        let read = poll_fn(|cx| self.poll_read(cx, length, &mut chunk)).await?;
        Ok(read.map(|_| std::mem::take(&mut chunk[0])))
    }

    /// What has come, as many chunks as `into` takes: how many there were, None at the end.
    pub async fn read_chunks(&mut self, into: &mut [Bytes]) -> Result<Option<usize>, ReadError> {
        poll_fn(|cx| self.poll_read(cx, usize::MAX, into)).await
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        length: usize,
        into: &mut [Bytes],
    ) -> Poll<Result<Option<usize>, ReadError>> {
        if let Some(code) = self.reset {
            return Poll::Ready(Err(ReadError::Reset(code)));
        }
        if self.over {
            return Poll::Ready(Ok(None));
        }
        let mut state = self.connection.lock();
        let Some(stack) = &mut state.stack else {
            return Poll::Ready(Err(ReadError::Lost));
        };
        let mut stream = stack.recv_stream(self.id);
        let Ok(mut chunks) = stream.read(true) else {
            return Poll::Ready(Err(ReadError::Lost));
        };
        let mut count = 0;
        let mut blocked = false;
        while count < into.len() {
            match chunks.next(length) {
                Ok(Some(chunk)) => {
                    into[count] = chunk.bytes;
                    count += 1;
                }
                Ok(None) => {
                    self.over = true;
                    break;
                }
                Err(proto::ReadError::Reset(code)) => {
                    (self.over, self.reset) = (true, Some(code));
                    break;
                }
                Err(proto::ReadError::Blocked) => {
                    blocked = true;
                    break;
                }
            }
        }
        if chunks.finalize().should_transmit() {
            self.connection.mark_dirty(&mut state);
        }
        match self.reset {
            _ if count > 0 => Poll::Ready(Ok(Some(count))),
            Some(code) => Poll::Ready(Err(ReadError::Reset(code))),
            None if !blocked => Poll::Ready(Ok(None)),
            None if state.ended.is_some() => Poll::Ready(Err(ReadError::Lost)),
            None => {
                state.readers.insert(self.id, cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Tell the peer that no more of it is wanted.
    pub fn stop(&mut self, code: VarInt) {
        let mut state = self.connection.lock();
        if let Some(stack) = &mut state.stack {
            let _ = stack.recv_stream(self.id).stop(code); // it may have ended
        }
        self.over = true;
        self.connection.mark_dirty(&mut state);
    }

    /// Wait until the peer gives it up; None where it cannot any more.
    pub async fn received_reset(&mut self) -> Option<VarInt> {
        poll_fn(|cx| {
            if let Some(code) = self.reset {
                return Poll::Ready(Some(code));
            }
            let mut state = self.connection.lock();
            let Some(stack) = &mut state.stack else {
                return Poll::Ready(None);
            };
            match stack.recv_stream(self.id).received_reset() {
                Err(_) => Poll::Ready(None),
                Ok(Some(code)) => {
                    self.over = true;
                    self.connection.mark_dirty(&mut state); // there may be credit for another stream to give
                    Poll::Ready(Some(code))
                }
                Ok(None) if state.ended.is_some() => Poll::Ready(None),
                Ok(None) => {
                    state.readers.insert(self.id, cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.connection.lock().readers.remove(&self.id);
        if !self.over {
            self.stop(VarInt::from_u32(0)); // on one that has ended, too: what nobody has read goes
        }
    }
}
