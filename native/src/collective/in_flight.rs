//! The collectives that run in an engine: one task that carries out their schedules, without Python between the steps.
//!
//! Everything here happens in that task, one thing after another: what Python asks for and what the network has done come
//! through one channel. A step begins when those before it are done. Sends and receives are messages as any others are;
//! reductions, copies and codecs run here, at most a chunk each, behind whatever keeps the network busy.
//!
//! What Python decides, for it knows the ranks: which connection leads to one now, when one is gone, and what comes of a
//! step that fails. A lost connection fails nothing: what it carried is sent again over the next one, and what was to come
//! over it is waited for again. Any other failure is told, and Python ends the collective, now or after a while.
//!
//! Python is told the end of a collective by the last that holds its memory (`Run`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use super::progress::Progress;
use super::run::Run;
use super::schedule::{Kind, Step};
use super::send_queue::{SendQueue, Sending};
use crate::events::{Event, Failure, OWN_OPERATION};
use crate::matching::queues::Post;
use crate::runtime::locks::locked;
use crate::session::context::Registry;
use crate::session::engine::Engine;
use crate::session::transmit::Message;
use crate::wire::{Header, encode_header};

/// What a rank that is gone has sent before may still lie unread in its connection, as in `transport/mesh/inbox.py`.
const GRACE: Duration = Duration::from_millis(300);

/// A rank of the endpoint, over connections for bulk or others.
type Way = (u32, bool);

enum Command {
    Start(Arc<Run>),
    Stop(u64),
    Route(Way, Option<u64>),
    Gone(u32),
    Ended(Box<Event>),
}

/// An engine's collectives, as Python's side asks for them.
pub struct Collectives {
    commands: UnboundedSender<Command>,
    running: Mutex<HashMap<u64, Weak<Run>>>,
}

impl Collectives {
    /// Begin the task, on the engine's first thread.
    pub fn begin(engine: &Arc<Engine>) -> Self {
        let (commands, received) = unbounded_channel();
        let ended = commands.clone();
        engine.context.events.tell_own(move |event| {
            let _ = ended.send(Command::Ended(Box::new(event))); // the engine has ended, and every collective with it
        });
        engine.spawn(InFlight::new(engine.clone()).run(received));
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

    /// End a collective early; what it has under way is cancelled.
    pub fn stop(&self, number: u64) {
        let _ = self.commands.send(Command::Stop(number));
    }

    /// Send over this connection what is for a rank from now on, or wait for another one.
    pub fn route(&self, rank: u32, bulk: bool, connection: Option<u64>) {
        let _ = self.commands.send(Command::Route((rank, bulk), connection));
    }

    /// A rank is gone: fail whatever waits for it.
    pub fn gone(&self, rank: u32) {
        let _ = self.commands.send(Command::Gone(rank));
    }

    /// How many payload bytes a collective has sent and received, and the ranks of the group that it waits for.
    pub fn progress(&self, number: u64) -> Option<(u64, Vec<u32>)> {
        let run = locked(&self.running).get(&number)?.upgrade()?;
        Some((run.bytes_done(), run.waits_for()))
    }
}

struct Active {
    run: Arc<Run>,
    progress: Progress,
    /// Operations of the engine that have not ended.
    open: HashSet<u64>,
    stopped: bool,
}

/// Which step an operation of the engine is; and where it sends, how and over which connection.
struct Operation {
    collective: u64,
    step: u32,
    sent: Option<(Way, Sending, u64)>,
}

struct InFlight {
    engine: Arc<Engine>,
    active: HashMap<u64, Active>,
    operations: HashMap<u64, Operation>,
    next_operation: u64,
    queues: HashMap<Way, SendQueue>,
    routes: HashMap<Way, u64>,
    gone: HashSet<u32>,
    computations: VecDeque<(u64, u32)>,
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
            gone: HashSet::new(),
            computations: VecDeque::new(),
        }
    }

    async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        loop {
            // What keeps the network busy goes before what is to be reckoned.
            while let Ok(command) = commands.try_recv() {
                self.take(command);
            }
            if let Some((collective, step)) = self.computations.pop_front() {
                self.compute(collective, step);
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
            Command::Stop(number) => self.stop(number),
            Command::Route(way, connection) => {
                match connection {
                    Some(connection) => self.routes.insert(way, connection),
                    None => self.routes.remove(&way),
                };
                self.pump(way);
            }
            Command::Gone(rank) => self.rank_gone(rank),
            Command::Ended(event) => self.ended(*event),
        }
    }

    fn start(&mut self, run: Arc<Run>) {
        let number = run.call.number;
        let active = Active {
            progress: Progress::new(run.schedule.after()),
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
                    self.queues.entry(way).or_default().push(sending);
                    if !ways.contains(&way) {
                        ways.push(way);
                    }
                }
                Kind::Receive => {
                    run.awaits(step);
                    self.post(&run, index, step);
                }
                Kind::Reduce { .. } | Kind::Copy | Kind::Encode(_) | Kind::Decode(_) => {
                    self.computations.push_back((number, index))
                }
            }
        }
        for way in ways {
            self.pump(way);
        }
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
        while let Some(connection) = self.routes.get(&way).copied() {
            let Some(sending) = self.queues.get_mut(&way).and_then(SendQueue::pop) else {
                return;
            };
            let active = self
                .active
                .get(&sending.collective)
                .expect("what waits is withdrawn with it");
            let run = active.run.clone();
            let step = &run.schedule.steps[sending.step as usize];
            let operation = self.open(sending.collective, sending.step, Some((way, sending, connection)));
            let Some(header) = encode_header(&run.header(step)) else {
                self.engine.context.events.push(Event::Failed {
                    operation,
                    failure: Failure::Peer {
                        peer: run.peer(step).name.clone(),
                        reason: "the message's header is outside its bounds".to_owned(),
                        code: 0,
                    },
                });
                continue;
            };
            let message = Message {
                operation,
                header: Bytes::from(header),
                payload: run.payload(step),
                level: run.call.level,
                deadline: None,
            };
            self.engine.send(connection, message);
        }
    }

    fn open(&mut self, collective: u64, step: u32, sent: Option<(Way, Sending, u64)>) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        let operation = Operation { collective, step, sent };
        self.operations.insert(number, operation);
        if let Some(active) = self.active.get_mut(&collective) {
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
        if let Some((way, sending, _)) = &operation.sent
            && let Some(queue) = self.queues.get_mut(way)
        {
            queue.landed(sending);
        }
        self.step_ended(number, &operation, event);
        if let Some((way, ..)) = operation.sent {
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
            Event::Failed { failure, .. } => self.failed(&run, operation, step, failure),
            _ => {
                run.settled(step, true);
                active.progress.done(operation.step);
                self.advance(operation.collective);
            }
        }
    }

    fn failed(&mut self, run: &Arc<Run>, operation: &Operation, step: &Step, failure: Failure) {
        let lost = matches!(failure, Failure::Lost { .. });
        if !lost || self.engine.over() || self.gone.contains(&run.peer(step).rank) {
            run.settled(step, false);
            return self.tell(run, step, Some(failure), None);
        }
        match &operation.sent {
            None => self.post(run, operation.step, step),
            Some((way, sending, connection)) => {
                if self.routes.get(way) == Some(connection) {
                    self.routes.remove(way);
                }
                let again = Sending {
                    fresh: false,
                    ..*sending
                };
                self.queues.entry(*way).or_default().push(again);
            }
        }
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
            queue.withdraw(Some(number));
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

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
