//! Which steps of a schedule may begin: counts of what each still waits for, and no memory, network or clock.

use std::collections::VecDeque;

/// How far one collective is.
pub struct Progress {
    /// Steps that are not done and that a step waits for.
    missing: Vec<u32>,
    /// The steps that wait for step i: `followers[firsts[i]..firsts[i + 1]]`.
    followers: Vec<u32>,
    firsts: Vec<u32>,
    ready: VecDeque<u32>,
    open: usize,
}

impl Progress {
    /// `after`: for each step those that it waits for; earlier ones all of them.
    pub fn new<'a>(after: impl ExactSizeIterator<Item = &'a [u32]> + Clone) -> Self {
        let count = after.len();
        let mut firsts = vec![0u32; count + 1];
        let mut missing = Vec::with_capacity(count);
        for earlier in after.clone() {
            missing.push(earlier.len() as u32);
            for one in earlier {
                firsts[*one as usize + 1] += 1;
            }
        }
        for i in 0..count {
            firsts[i + 1] += firsts[i];
        }
        let mut followers = vec![0u32; firsts[count] as usize];
        let mut next = firsts.clone();
        for (step, earlier) in after.enumerate() {
            for one in earlier {
                let place = &mut next[*one as usize];
                followers[*place as usize] = step as u32;
                *place += 1;
            }
        }
        let ready = (0..count as u32).filter(|step| missing[*step as usize] == 0).collect();
        Self {
            missing,
            followers,
            firsts,
            ready,
            open: count,
        }
    }

    /// The next step that waits for nothing; each is given once, of those that are free together the first first.
    pub fn next(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// A step that `next` gave has not begun: it is given once more, behind those that are free now.
    pub fn again(&mut self, step: u32) {
        self.ready.push_back(step);
    }

    /// A step that `next` gave is done.
    pub fn done(&mut self, step: u32) {
        self.open -= 1;
        let step = step as usize;
        for follower in self.firsts[step]..self.firsts[step + 1] {
            let follower = self.followers[follower as usize];
            let missing = &mut self.missing[follower as usize];
            *missing -= 1;
            if *missing == 0 {
                self.ready.push_back(follower);
            }
        }
    }

    /// Whether every step is done.
    pub fn finished(&self) -> bool {
        self.open == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_begins_once_and_after_all_that_it_waits_for() {
        for seed in 1..200u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut below = |bound: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % bound
            };
            let count = below(40);
            let mut after: Vec<Vec<u32>> = Vec::new();
            for step in 0..count {
                let mut earlier: Vec<u32> = (0..step as u32).filter(|_| below(4) == 0).collect();
                earlier.extend(earlier.first().copied()); // said twice
                after.push(earlier);
            }
            let mut progress = Progress::new(after.iter().map(Vec::as_slice));
            let (mut begun, mut done) = (Vec::new(), vec![false; count as usize]);
            while !progress.finished() {
                while let Some(step) = progress.next() {
                    assert!(
                        after[step as usize].iter().all(|one| done[*one as usize]),
                        "seed {seed}"
                    );
                    assert!(!done[step as usize] && !begun.contains(&step), "seed {seed}");
                    begun.push(step);
                }
                let step = begun.swap_remove(below(begun.len() as u64) as usize);
                done[step as usize] = true;
                progress.done(step);
            }
            assert!(begun.is_empty() && progress.next().is_none(), "seed {seed}");
            assert!(done.iter().all(|one| *one), "seed {seed}");
        }
    }
}
