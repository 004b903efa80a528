//! [`ArenaPool`]: working memory of a backend's programs. Programs that do not run at the same time use the same memory.

use crate::machine::memory::AlignedMemory;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systole_ir::Result;

/// Arenas that no run uses at the moment.
#[derive(Clone, Default)]
pub struct ArenaPool(Arc<Mutex<PooledArenas>>);

#[derive(Default)]
struct PooledArenas {
    free: Vec<AlignedMemory>,
    /// For each arena size in bytes, the number of programs that need it.
    needed: BTreeMap<usize, usize>,
}

/// A program's share of a pool; the pool frees what no program needs any more when it is dropped.
pub struct ArenaUser {
    pool: ArenaPool,
    bytes: usize,
}

impl ArenaPool {
    /// Registers a program that needs arenas of this many bytes.
    pub fn user(&self, bytes: usize) -> ArenaUser {
        *self.arenas().needed.entry(bytes).or_default() += 1;
        ArenaUser { pool: self.clone(), bytes }
    }

    fn arenas(&self) -> MutexGuard<'_, PooledArenas> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArenaUser {
    /// Takes the smallest arena that is large enough, or allocates one; it takes the place of a smaller one.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn take(&self) -> Result<AlignedMemory> {
        let smaller = {
            let mut arenas = self.pool.arenas();
            let free = arenas.free.iter().enumerate();
            let fits = free.clone().filter(|(_, arena)| arena.len() >= self.bytes);
            if let Some((at, _)) = fits.min_by_key(|(_, arena)| arena.len()) {
                return Ok(poisoned(arenas.free.swap_remove(at)));
            }
            let largest = free.max_by_key(|(_, arena)| arena.len()).map(|(at, _)| at);
            largest.map(|at| arenas.free.swap_remove(at))
        };
        drop(smaller);
        AlignedMemory::unfilled(self.bytes)
    }

    /// Returns an arena after a run.
    pub fn give(&self, arena: AlignedMemory) {
        self.pool.arenas().free.push(arena);
    }
}

impl Drop for ArenaUser {
    fn drop(&mut self) {
        let mut arenas = self.pool.arenas();
        if let Some(users) = arenas.needed.get_mut(&self.bytes) {
            *users -= 1;
            if *users == 0 {
                arenas.needed.remove(&self.bytes);
            }
        }
        let most = arenas.needed.keys().next_back().copied();
        let PooledArenas { free, .. } = &mut *arenas;
        let (kept, dropped) = std::mem::take(free).into_iter().partition(|arena| Some(arena.len()) <= most);
        *free = kept;
        let dropped: Vec<AlignedMemory> = dropped;
        drop(arenas);
        drop(dropped);
    }
}

/// Debug builds fill arenas with NaN: no program may depend on what the one before it left.
fn poisoned(mut arena: AlignedMemory) -> AlignedMemory {
    if cfg!(debug_assertions) {
        arena.fill(0xff);
    }
    arena
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(pool: &ArenaPool) -> Vec<usize> {
        let mut sizes: Vec<usize> = pool.arenas().free.iter().map(AlignedMemory::len).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn programs_one_after_the_other_share_the_largest_arena() {
        let pool = ArenaPool::default();
        let (small, large) = (pool.user(1000), pool.user(5000));
        small.give(small.take().unwrap());
        assert_eq!(free(&pool), [1000]);
        large.give(large.take().unwrap());
        assert_eq!(free(&pool), [5000], "the larger arena takes the place of the smaller one");
        let arena = small.take().unwrap();
        assert_eq!((arena.len(), free(&pool)), (5000, vec![]));
        small.give(arena);
        assert_eq!(free(&pool), [5000]);
    }

    #[test]
    fn programs_at_the_same_time_have_an_arena_each() {
        let pool = ArenaPool::default();
        let (small, large) = (pool.user(1000), pool.user(5000));
        let (a, b) = (small.take().unwrap(), large.take().unwrap());
        assert_ne!(a.ptr(), b.ptr());
        small.give(a);
        large.give(b);
        assert_eq!(free(&pool), [1000, 5000]);
        assert_eq!(small.take().unwrap().len(), 1000, "the smallest that is large enough");
    }

    #[test]
    fn what_no_program_needs_is_freed() {
        let pool = ArenaPool::default();
        let (small, large, twin) = (pool.user(1000), pool.user(5000), pool.user(5000));
        large.give(large.take().unwrap());
        drop(large);
        assert_eq!(free(&pool), [5000]);
        drop(twin);
        assert!(free(&pool).is_empty());
        small.give(small.take().unwrap());
        drop(small);
        assert!(free(&pool).is_empty() && pool.arenas().needed.is_empty());
    }
}
