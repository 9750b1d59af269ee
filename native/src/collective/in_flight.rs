//! The collectives that run in an engine: one task that carries out their schedules, without Python between the steps.
//!
//! Everything here happens in that task, one thing after another: what Python asks for and what the network has done come
//! through one channel. A step begins when those before it are done. Sends and receives are messages as any others are;
//! reductions, copies and codecs run here, at most a chunk each, behind whatever keeps the network busy, the urgent first.
//!
//! What Python decides, for it knows the ranks: which connections lead to one now, when one is gone, and what comes of a
//! step that fails. A lost connection fails nothing: what it carried is sent again over the next one, and what was to come
//! over it is waited for again. Any other failure is told, and Python ends the collective, now or after a while.
//!
//! What a rank has no place for yet it asks to have held back (`matching::holds`): those sends wait, and no others.
//!
//! Small messages count as sent before they are acknowledged (`unacknowledged`).
//!
//! Python is told the end of a collective by the last that holds its memory (`Run`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use super::commands::{Collectives, Command, Way};
use super::holds::Holds;
use super::path_choice::{PathLoad, choose};
use super::progress::Progress;
use super::run::Run;
use super::schedule::{Kind, Step};
use super::send_queue::{SendQueue, Sending};
use super::unacknowledged::Unacknowledged;
use crate::events::{Event, Failure, OWN_OPERATION};
use crate::matching::queues::Post;
use crate::quic::send_scheduler::LEVELS;
use crate::session::context::Registry;
use crate::session::engine::Engine;
use crate::session::transmit::Message;
use crate::wire::{Header, Hold, encode_header};

/// What a rank that is gone has sent before may still lie unread in its connection, as in `transport/mesh/inbox.py`.
const GRACE: Duration = Duration::from_millis(300);

/// Begin the task, on the engine's first thread.
pub fn begin(engine: &Arc<Engine>) -> Collectives {
    let (commands, received) = unbounded_channel();
    let ended = commands.clone();
    engine.context.events.tell_own(move |event| {
        let _ = ended.send(Command::Ended(Box::new(event))); // the engine has ended, and every collective with it
    });
    engine.spawn(InFlight::new(engine.clone()).run(received));
    Collectives::new(commands)
}

struct Active {
    run: Arc<Run>,
    progress: Progress,
    /// Operations of the engine that have not ended.
    open: HashSet<u64>,
    /// As `Call::missing`, of what is missing still; and the steps that wait for it.
    missing: Range<usize>,
    held_back: Vec<u32>,
    stopped: bool,
}

/// Which step an operation of the engine is.
struct Operation {
    collective: u64,
    step: u32,
    sent: Option<Sent>,
}

impl Operation {
    /// Whether a failure says no more than that the peer had taken the message before: it was sent again over another
    /// connection, and the peer has ended the collective. One that it could not end well it gives up, and says so.
    fn was_taken(&self, failure: &Failure) -> bool {
        let again = self.sent.as_ref().is_some_and(|sent| !sent.sending.fresh);
        again && matches!(failure, Failure::Discarded(_))
    }
}

/// Where an operation sends, how, over which connection and since when.
struct Sent {
    way: Way,
    sending: Sending,
    connection: u64,
    at: Instant,
    /// It counts as under way.
    counts: bool,
}

struct InFlight {
    engine: Arc<Engine>,
    active: HashMap<u64, Active>,
    operations: HashMap<u64, Operation>,
    next_operation: u64,
    queues: HashMap<Way, SendQueue>,
    /// The connections to a rank, each over a link of its own.
    routes: HashMap<Way, Vec<u64>>,
    loads: HashMap<u64, PathLoad>,
    holds: Holds,
    gone: HashSet<u32>,
    /// Of each level, in the order in which they could begin.
    computations: [VecDeque<(u64, u32)>; LEVELS],
    unacknowledged: Unacknowledged,
    /// Steps that were sent and are done without an acknowledgement.
    handed_over: VecDeque<(u64, u32)>,
}

impl InFlight {
    fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            active: HashMap::new(),
            operations: HashMap::new(),
            next_operation: OWN_OPERATION,
            queues: HashMap::new(),
            routes: HashMap::new(),
            loads: HashMap::new(),
            holds: Holds::default(),
            gone: HashSet::new(),
            computations: Default::default(),
            unacknowledged: Unacknowledged::default(),
            handed_over: VecDeque::new(),
        }
    }

    async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        loop {
            // What keeps the network busy goes before what is to be reckoned.
            while let Ok(command) = commands.try_recv() {
                self.take(command);
            }
            if let Some((collective, step)) = self.computations.iter_mut().find_map(VecDeque::pop_front) {
                self.compute(collective, step);
                self.end_handed_over();
                tokio::task::yield_now().await;
                continue;
            }
            match commands.recv().await {
                Some(command) => self.take(command),
                None => return,
            }
        }
    }

    fn take(&mut self, command: Command) {
        self.engine.context.faults.here("collective");
        match command {
            Command::Start(run) => self.start(run),
            Command::ReadOn(number, missing_from) => self.read_on(number, missing_from),
            Command::Stop(number) => self.stop(number),
            Command::Routes(way, connections) => {
                self.routes.insert(way, connections);
                let in_use: HashSet<u64> = self.routes.values().flatten().copied().collect();
                self.loads
                    .retain(|connection, load| in_use.contains(connection) || !load.idle());
                self.holds.retain(|connection| in_use.contains(&connection));
                self.sort_out(way);
            }
            Command::Gone(rank) => self.rank_gone(rank),
            Command::Drain(drained) => self.unacknowledged.drain(drained),
            Command::Ended(event) => match *event {
                Event::Hold { connection, hold } => self.hold(connection, hold),
                ended => self.ended(ended),
            },
        }
        self.end_handed_over();
    }

    /// A rank asks that messages to it wait, or go on.
    fn hold(&mut self, connection: u64, hold: Hold) {
        let way = self.routes.iter().find(|(_, all)| all.contains(&connection));
        if let Some(way) = way.map(|(way, _)| *way)
            && self.holds.heard(connection, hold)
        {
            self.sort_out(way);
        }
    }

    /// What is held back of what goes to a rank may have changed.
    fn sort_out(&mut self, way: Way) {
        let (holds, routes, active) = (&self.holds, &self.routes, &self.active);
        let is_held = |sending: &Sending| is_held(holds, routes, active, way, sending);
        if let Some(queue) = self.queues.get_mut(&way) {
            queue.sort_out(holds.count(routes.get(&way).map_or(&[], Vec::as_slice)), is_held);
            for sent in self.operations.values_mut().filter_map(|one| one.sent.as_mut()) {
                if sent.counts && sent.way == way && is_held(&sent.sending) {
                    sent.counts = false;
                    queue.landed(&sent.sending);
                }
            }
        }
        self.pump(way);
    }

    fn queue(&mut self, way: Way, sending: Sending) {
        let held = is_held(&self.holds, &self.routes, &self.active, way, &sending);
        self.queues.entry(way).or_default().push(sending, held);
    }

    fn end_handed_over(&mut self) {
        while let Some((collective, step)) = self.handed_over.pop_front() {
            self.done(collective, step);
        }
    }

    /// A step that was sent is done.
    fn done(&mut self, number: u64, index: u32) {
        if let Some(active) = self.active.get_mut(&number).filter(|active| !active.stopped) {
            active.run.settled(&active.run.schedule.steps[index as usize], true);
            active.progress.done(index);
            self.advance(number);
        }
    }

    fn start(&mut self, run: Arc<Run>) {
        let number = run.call.number;
        let active = Active {
            progress: Progress::new(run.schedule.after()),
            missing: run.call.missing.clone(),
            held_back: Vec::new(),
            run,
            open: HashSet::new(),
            stopped: false,
        };
        let call = &active.run.call;
        self.engine
            .context
            .matcher
            .expect(&call.group, call.step, active.run.heard());
        self.active.insert(number, active);
        self.advance(number);
    }

    /// Nothing of it is begun any more.
    fn forget(&mut self, number: u64) {
        if let Some(Active { run, .. }) = self.active.remove(&number) {
            self.engine
                .context
                .matcher
                .expect_no_more(&run.call.group, run.call.step);
        }
    }

    /// Begin every step of a collective that may begin, and let go of it when all are done.
    fn advance(&mut self, number: u64) {
        let mut ways: Vec<Way> = Vec::new();
        while let Some(active) = self.active.get_mut(&number) {
            if active.stopped {
                break;
            }
            let Some(index) = active.progress.next() else {
                if active.progress.finished() {
                    active.run.completed();
                    self.forget(number);
                }
                break;
            };
            let run = active.run.clone();
            let step = &run.schedule.steps[index as usize];
            if run.touches(step, &active.missing) {
                active.held_back.push(index);
                continue;
            }
            match step.kind {
                Kind::Send => {
                    let way = (run.peer(step).rank, run.call.bulk);
                    let sending = Sending {
                        level: run.call.level,
                        fresh: true,
                        order: run.call.order,
                        step: index,
                        collective: number,
                        bytes: run.schedule.regions(step)[0].len() as u64,
                    };
                    run.awaits(step);
                    self.queue(way, sending);
                    if !ways.contains(&way) {
                        ways.push(way);
                    }
                }
                Kind::Receive => {
                    run.awaits(step);
                    self.post(&run, index, step);
                }
                Kind::Reduce { .. } | Kind::Copy | Kind::Encode { .. } | Kind::Decode(_) => {
                    self.computations[run.call.level].push_back((number, index))
                }
            }
        }
        for way in ways {
            self.pump(way);
        }
    }

    fn read_on(&mut self, number: u64, missing_from: usize) {
        let Some(active) = self.active.get_mut(&number) else {
            return;
        };
        active.missing.start = missing_from;
        for index in std::mem::take(&mut active.held_back) {
            active.progress.again(index);
        }
        self.advance(number);
    }

    fn compute(&mut self, number: u64, index: u32) {
        let Some(active) = self.active.get_mut(&number).filter(|active| !active.stopped) else {
            return;
        };
        active.run.compute(&active.run.schedule.steps[index as usize]);
        active.progress.done(index);
        self.advance(number);
    }

    fn post(&mut self, run: &Arc<Run>, index: u32, step: &Step) {
        let peer = run.peer(step);
        let operation = self.open(run.call.number, index, None);
        let post = Post {
            operation,
            key: run.key(step, peer.rank),
            buffer: run.posted(step),
        };
        self.engine.context.matcher.post(&peer.name, post);
        if self.gone.contains(&peer.rank) {
            let engine = self.engine.clone();
            self.engine.spawn(async move {
                sleep(GRACE).await;
                engine.cancel(operation); // nothing of one that had its message
            });
        }
    }

    /// Hand to the engine what may go to a rank now.
    fn pump(&mut self, way: Way) {
        if self.gone.contains(&way.0) {
            return self.refuse(way);
        }
        while let Some(next) = self.queues.get(&way).and_then(SendQueue::next) {
            let Some(connection) = self.route_of(way, next.bytes) else {
                return;
            };
            let Some(sending) = self.queues.get_mut(&way).and_then(SendQueue::pop) else {
                return;
            };
            self.loads.entry(connection).or_default().sent(sending.bytes);
            let operation = self.next_operation;
            let message = self.message(operation, &sending);
            let sent = Sent {
                way,
                sending,
                connection,
                at: Instant::now(),
                counts: true,
            };
            self.open(sending.collective, sending.step, Some(sent));
            match message {
                Ok(message) => self.engine.send(connection, message),
                Err(failure) => self.engine.context.events.push(Event::Failed { operation, failure }),
            };
        }
    }

    /// The connection over which a message to a rank goes now.
    fn route_of(&self, way: Way, bytes: u64) -> Option<u64> {
        let connections = self.routes.get(&way)?;
        if let [only] = connections[..] {
            return Some(only);
        }
        let paths = connections.iter().filter_map(|connection| {
            let load = self.loads.get(connection).copied().unwrap_or_default();
            Some((*connection, load, self.rtt(*connection)?))
        });
        choose(paths, bytes, Instant::now())
    }

    /// The shortest round trip of a connection, as long as it lives.
    fn rtt(&self, connection: u64) -> Option<Duration> {
        Some(self.engine.session(connection)?.measure.read().rtt_min)
    }

    fn message(&mut self, operation: u64, sending: &Sending) -> Result<Message, Failure> {
        if let Some(again) = self.unacknowledged.again(sending, operation) {
            return Ok(again);
        }
        let active = self.active.get(&sending.collective);
        let run = active.expect("what waits is withdrawn with it").run.clone();
        let step = &run.schedule.steps[sending.step as usize];
        let header = encode_header(&run.header(step)).ok_or_else(|| Failure::Peer {
            peer: run.peer(step).name.clone(),
            reason: "the message's header is outside its bounds".to_owned(),
            code: 0,
        })?;
        let copied = run.copies(step) && self.unacknowledged.has_room();
        let message = Message {
            operation,
            header: Bytes::from(header),
            payload: if copied { run.copy(step) } else { run.payload(step) },
            level: run.call.level,
        };
        if copied {
            self.unacknowledged.keep(sending, &message);
            self.handed_over.push_back((sending.collective, sending.step));
        }
        Ok(message)
    }

    fn open(&mut self, collective: u64, step: u32, sent: Option<Sent>) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        let operation = Operation { collective, step, sent };
        self.operations.insert(number, operation);
        if !self.unacknowledged.has(collective, step)
            && let Some(active) = self.active.get_mut(&collective)
        {
            active.open.insert(number);
        }
        number
    }

    /// A message was sent or received, or failed.
    fn ended(&mut self, event: Event) {
        let Some((number, operation)) = event
            .operation()
            .and_then(|number| Some((number, self.operations.remove(&number)?)))
        else {
            return;
        };
        if let Some(Sent {
            way,
            sending,
            connection,
            at,
            counts,
        }) = &operation.sent
        {
            if let Some(queue) = self.queues.get_mut(way).filter(|_| *counts) {
                queue.landed(sending);
            }
            let (rtt, well) = (self.rtt(*connection), matches!(event, Event::SendDone(_)));
            if let Some(load) = self.loads.get_mut(connection) {
                load.landed(sending.bytes, *at, rtt.unwrap_or_default(), Instant::now(), well);
            }
        }
        if self.unacknowledged.has(operation.collective, operation.step) {
            self.copy_ended(&operation, event);
        } else {
            self.step_ended(number, &operation, event);
        }
        if let Some(Sent { way, .. }) = operation.sent {
            self.pump(way);
        }
    }

    fn step_ended(&mut self, number: u64, operation: &Operation, event: Event) {
        let Some(active) = self.active.get_mut(&operation.collective) else {
            return;
        };
        active.open.remove(&number);
        let run = active.run.clone();
        let step = &run.schedule.steps[operation.step as usize];
        if active.stopped {
            run.settled(step, false);
            if active.open.is_empty() {
                self.forget(operation.collective);
            }
            return;
        }
        match event {
            Event::Received { header, .. } if !run.accepts(step, &header) => {
                run.settled(step, false);
                self.tell(&run, step, None, Some(header));
            }
            Event::Failed { failure, .. } if !operation.was_taken(&failure) => {
                self.failed(&run, operation, step, failure);
            }
            _ => {
                run.settled(step, true);
                active.progress.done(operation.step);
                self.advance(operation.collective);
            }
        }
    }

    /// A message whose step was done when it was handed over is acknowledged, lost or refused.
    fn copy_ended(&mut self, operation: &Operation, event: Event) {
        let failure = match event {
            Event::Failed { failure, .. } if !operation.was_taken(&failure) => Some(failure),
            _ => None,
        };
        if let (Some(failure), Some(Sent { way, .. })) = (&failure, &operation.sent)
            && failure.of_one_connection()
            && !self.engine.over()
            && !self.gone.contains(&way.0)
        {
            return self.send_again(operation);
        }
        self.unacknowledged.settled(operation.collective, operation.step);
        let active = self.active.get(&operation.collective);
        if let (Some(failure), Some(active)) = (failure, active.filter(|active| !active.stopped)) {
            let run = active.run.clone();
            self.tell(&run, &run.schedule.steps[operation.step as usize], Some(failure), None);
        }
    }

    fn failed(&mut self, run: &Arc<Run>, operation: &Operation, step: &Step, failure: Failure) {
        if !failure.of_one_connection() || self.engine.over() || self.gone.contains(&run.peer(step).rank) {
            run.settled(step, false);
            return self.tell(run, step, Some(failure), None);
        }
        match &operation.sent {
            None => self.post(run, operation.step, step),
            Some(_) => self.send_again(operation),
        }
    }

    /// Its connection is lost: over the next one.
    fn send_again(&mut self, operation: &Operation) {
        let Some(Sent {
            way,
            sending,
            connection,
            ..
        }) = &operation.sent
        else {
            return;
        };
        if let Some(connections) = self.routes.get_mut(way) {
            connections.retain(|one| one != connection);
        }
        let again = Sending {
            fresh: false,
            ..*sending
        };
        self.queue(*way, again);
    }

    fn tell(&self, run: &Run, step: &Step, failure: Option<Failure>, header: Option<Header>) {
        self.engine.context.events.push(Event::StepFailed {
            collective: run.call.number,
            peer: step.peer,
            bytes: run.schedule.regions(step)[0].len() as u64,
            failure,
            header,
        });
    }

    fn stop(&mut self, number: u64) {
        let Some(active) = self.active.get_mut(&number) else {
            return;
        };
        active.stopped = true;
        let open: Vec<u64> = active.open.iter().copied().collect();
        for queue in self.queues.values_mut() {
            for sending in queue.withdraw(Some(number)) {
                self.unacknowledged.settled(number, sending.step);
            }
        }
        if open.is_empty() {
            self.forget(number);
        }
        for operation in open {
            self.engine.cancel(operation);
        }
    }

    /// Everything that came from it before has been told: what still waits for it waits in vain.
    fn rank_gone(&mut self, rank: u32) {
        self.gone.insert(rank);
        for bulk in [false, true] {
            self.refuse((rank, bulk));
        }
        for (number, operation) in &self.operations {
            let active = self.active.get(&operation.collective);
            if active.is_some_and(|one| one.run.peer(&one.run.schedule.steps[operation.step as usize]).rank == rank) {
                self.engine.cancel(*number);
            }
        }
    }

    /// Fail what waits to be sent to a rank that is gone.
    fn refuse(&mut self, way: Way) {
        let refused = self.queues.get_mut(&way).map(|queue| queue.withdraw(None));
        for sending in refused.unwrap_or_default() {
            if self.unacknowledged.settled(sending.collective, sending.step) {
                continue;
            }
            let Some(active) = self.active.get(&sending.collective) else {
                continue;
            };
            let run = active.run.clone();
            let step = &run.schedule.steps[sending.step as usize];
            run.settled(step, false);
            let failure = Failure::Lost {
                peer: run.peer(step).name.clone(),
                reason: "the rank is gone".to_owned(),
            };
            self.tell(&run, step, Some(failure), None);
        }
    }
}

/// Whether a rank has asked to have what this is of held back.
fn is_held(
    holds: &Holds,
    routes: &HashMap<Way, Vec<u64>>,
    active: &HashMap<u64, Active>,
    way: Way,
    sending: &Sending,
) -> bool {
    match (routes.get(&way), active.get(&sending.collective)) {
        (Some(connections), Some(Active { run, .. })) => holds.hold(connections, &run.call.group, run.call.step),
        _ => false,
    }
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
