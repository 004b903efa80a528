//! Working memory (arenas) of programs between their runs.
//!
//! Each program keeps what its last runs used, up to a limit for all programs together: a process that compiled
//! thousands of programs needs the memory of those that run.

use crate::machine::memory::AlignedMemory;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that idle programs keep. The program that ran last keeps its memory even if it needs more.
const LIMIT: usize = 512 << 20;

/// The memory of the programs of a backend.
#[derive(Default)]
pub struct ArenaPool(Mutex<IdleArenas>);

#[derive(Default)]
struct IdleArenas {
    /// By program: when it last ran, and its memory.
    programs: HashMap<u64, (u64, Vec<AlignedMemory>)>,
    bytes: usize,
    /// Number of runs.
    runs: u64,
    /// Number of programs.
    ids: u64,
}

impl ArenaPool {
    fn idle(&self) -> MutexGuard<'_, IdleArenas> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id of a new program.
    pub fn add_program(&self) -> u64 {
        let mut idle = self.idle();
        idle.ids += 1;
        idle.ids
    }

    /// Takes memory that an earlier run of a program used.
    pub fn take(&self, program: u64) -> Option<AlignedMemory> {
        let mut idle = self.idle();
        let memory = idle.programs.get_mut(&program)?.1.pop()?;
        idle.bytes -= memory.len();
        Some(memory)
    }

    /// Keeps memory for the next run of a program; if it is too much, frees that of the programs that ran least
    /// recently.
    pub fn put(&self, program: u64, memory: AlignedMemory) {
        let freed = self.idle().put(program, memory, LIMIT);
        // Without the lock.
        drop(freed);
    }

    /// Frees the memory of a program.
    pub fn remove_program(&self, program: u64) {
        let freed = self.idle().remove(program);
        drop(freed);
    }
}

impl IdleArenas {
    fn put(&mut self, program: u64, memory: AlignedMemory, limit: usize) -> Vec<AlignedMemory> {
        self.runs += 1;
        self.bytes += memory.len();
        let (last, own) = self.programs.entry(program).or_default();
        *last = self.runs;
        own.push(memory);
        let mut freed = Vec::new();
        while self.bytes > limit {
            let others = self.programs.iter().filter(|(id, (_, own))| **id != program && !own.is_empty());
            let Some(oldest) = others.min_by_key(|(_, (last, _))| *last).map(|(id, _)| *id) else { break };
            freed.extend(self.remove(oldest));
        }
        freed
    }

    fn remove(&mut self, program: u64) -> Vec<AlignedMemory> {
        let freed = self.programs.remove(&program).map(|(_, own)| own).unwrap_or_default();
        self.bytes -= freed.iter().map(AlignedMemory::len).sum::<usize>();
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(idle: &IdleArenas) -> Vec<(u64, usize)> {
        let bytes = |own: &[AlignedMemory]| own.iter().map(AlignedMemory::len).sum();
        let mut all: Vec<_> = idle.programs.iter().map(|(id, (_, own))| (*id, bytes(own))).collect();
        all.sort();
        assert_eq!(idle.bytes, all.iter().map(|(_, bytes)| bytes).sum::<usize>());
        all
    }

    #[test]
    fn programs_that_ran_least_recently_lose_their_memory() {
        let memory = |bytes| AlignedMemory::new(bytes).expect("there is memory");
        let mut idle = IdleArenas::default();
        for (program, bytes) in [(1, 400), (2, 300), (1, 100), (3, 200)] {
            assert!(idle.put(program, memory(bytes), 1000).is_empty());
        }
        assert_eq!(idle.put(4, memory(10), 1000).len(), 1);
        assert_eq!(sizes(&idle), [(1, 500), (3, 200), (4, 10)]);
        // One program keeps more than the limit.
        assert_eq!(idle.put(4, memory(2000), 1000).len(), 3);
        assert_eq!(sizes(&idle), [(4, 2010)]);
        assert_eq!(idle.remove(4).len(), 2);
        assert_eq!(sizes(&idle), []);
    }

    #[test]
    fn a_program_gets_its_own_memory_back() {
        let pool = ArenaPool::default();
        let (a, b) = (pool.add_program(), pool.add_program());
        assert!(a != b && pool.take(a).is_none());
        pool.put(a, AlignedMemory::new(64).expect("there is memory"));
        assert!(pool.take(b).is_none());
        assert_eq!(pool.take(a).map(|m| m.len()), Some(64));
        pool.put(a, AlignedMemory::new(64).expect("there is memory"));
        pool.remove_program(a);
        assert!(pool.take(a).is_none() && pool.idle().bytes == 0);
    }
}
