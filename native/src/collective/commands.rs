//! An engine's collectives, as Python's side asks for them: commands to the task that carries them out (`in_flight`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::run::Run;
use crate::events::Event;
use crate::runtime::locks::locked;

/// A rank of the endpoint, over connections for bulk or others.
pub(super) type Way = (u32, bool);

pub(super) enum Command {
    Start(Arc<Run>),
    /// A collective may touch what it lacked up to this address.
    ReadOn(u64, usize),
    Stop(u64),
    Routes(Way, Vec<u64>),
    Gone(u32),
    Drain(mpsc::Sender<()>),
    /// An operation of the engine's own has ended, or a rank asks for a hold.
    Ended(Box<Event>),
}

/// An engine's collectives, as Python's side asks for them.
pub struct Collectives {
    commands: UnboundedSender<Command>,
    running: Mutex<HashMap<u64, Weak<Run>>>,
}

impl Collectives {
    /// Who carries them out is at the other end of the channel.
    pub(super) fn new(commands: UnboundedSender<Command>) -> Self {
        Self {
            commands,
            running: Mutex::default(),
        }
    }

    /// Carry out a collective. False where the engine has ended: nobody will be told how it ends.
    pub fn start(&self, run: Run) -> bool {
        let (number, run) = (run.call.number, Arc::new(run));
        let mut running = locked(&self.running);
        running.retain(|_, run| run.strong_count() > 0);
        running.insert(number, Arc::downgrade(&run));
        drop(running);
        run.begin();
        let sent = self.commands.send(Command::Start(run));
        if let Err(refused) = &sent
            && let Command::Start(run) = &refused.0
        {
            run.never_began();
        }
        sent.is_ok()
    }

    /// Of what a collective lacks, all before this address is there.
    pub fn read_on(&self, number: u64, missing_from: usize) {
        let _ = self.commands.send(Command::ReadOn(number, missing_from));
    }

    /// End a collective early; what it has under way is cancelled.
    pub fn stop(&self, number: u64) {
        let _ = self.commands.send(Command::Stop(number));
    }

    /// Send over these connections what is for a rank from now on, or wait for others.
    pub fn route(&self, rank: u32, bulk: bool, connections: Vec<u64>) {
        let _ = self.commands.send(Command::Routes((rank, bulk), connections));
    }

    /// A rank is gone: fail whatever waits for it.
    pub fn gone(&self, rank: u32) {
        let _ = self.commands.send(Command::Gone(rank));
    }

    /// Wait until every message that counts as sent is acknowledged, for so long at most; whether that is so.
    pub fn drain(&self, patience: Duration) -> bool {
        let (drained, told) = mpsc::channel();
        self.commands.send(Command::Drain(drained)).is_ok() && told.recv_timeout(patience).is_ok()
    }

    /// How many payload bytes a collective has sent and received, and the ranks of the group that it waits for.
    pub fn progress(&self, number: u64) -> Option<(u64, Vec<u32>)> {
        let run = locked(&self.running).get(&number)?.upgrade()?;
        Some((run.bytes_done(), run.waits_for()))
    }
}
