//! 8-byte aligned storage of host arrays, with free lists that recycle large allocations.
//!
//! Scalars are stored inline. Freed storage is kept for the next array of about its size: fresh pages cost a page fault
//! and zeroing each, which is slower than filling a batch.

use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of words stored inline, without an allocation.
const INLINE: usize = 2;
/// Minimum size in words for recycling; below it the allocator is as fast.
const SMALL: usize = 64;
/// Size in words from which storage is shared between threads (32 KiB).
const LARGE: usize = 4 << 10;
/// Capacity in words of a thread's free list per size (128 KiB), and of the shared free list (32 MiB).
const NEAR: usize = 16 << 10;
const FAR: usize = 4 << 20;
/// Maximum number of arrays in the shared free list, which is searched linearly.
const PLACES: usize = 16;

/// 64-bit words: 8-byte alignment without unsafe code.
pub(crate) struct AlignedWords {
    own: SmallVec<[u64; INLINE]>,
    /// Memory of another library, which is read in place of `own` and copied by the first write.
    foreign: Option<Arc<dyn ForeignMemory>>,
}

/// Memory of another library that an array reads in place, released when the last owner is dropped.
pub trait ForeignMemory: Send + Sync {
    /// The elements, row-major, little endian, aligned to 8 bytes.
    fn bytes(&self) -> &[u8];
}

impl From<SmallVec<[u64; INLINE]>> for AlignedWords {
    fn from(own: SmallVec<[u64; INLINE]>) -> AlignedWords {
        AlignedWords { own, foreign: None }
    }
}

impl AlignedWords {
    /// Wraps memory of another library.
    pub fn foreign(memory: Arc<dyn ForeignMemory>) -> AlignedWords {
        AlignedWords { own: SmallVec::new(), foreign: Some(memory) }
    }

    /// Whether this is memory of another library.
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// The first `n` bytes.
    #[inline]
    pub fn bytes(&self, n: usize) -> &[u8] {
        match &self.foreign {
            None => &bytemuck::cast_slice(&self.own)[..n],
            Some(memory) => &memory.bytes()[..n],
        }
    }

    /// The first `n` bytes for writing; memory of another library is copied first.
    #[inline]
    pub fn bytes_mut(&mut self, n: usize) -> &mut [u8] {
        if self.foreign.is_some() {
            *self = self.clone();
        }
        &mut bytemuck::cast_slice_mut(&mut self.own)[..n]
    }

    /// Allocates words filled with zeros.
    pub fn zeros(n: usize) -> AlignedWords {
        let mut words = AlignedWords::unfilled(n);
        words.own.fill(0);
        words
    }

    /// Allocates words with unspecified contents.
    pub fn unfilled(n: usize) -> AlignedWords {
        let Some(mut spare) = take(n) else {
            if n < SMALL {
                return AlignedWords::from(SmallVec::from_elem(0, n));
            }
            let mut fresh = vec![0; roomy(n)];
            fresh.truncate(n);
            return AlignedWords::from(SmallVec::from_vec(fresh));
        };
        spare.resize(n, 0);
        AlignedWords::from(SmallVec::from_vec(spare))
    }

    /// Copies bytes into words; the last word is padded with zeros.
    pub fn of(bytes: &[u8]) -> AlignedWords {
        let mut words = AlignedWords::unfilled(bytes.len().div_ceil(8));
        if let Some(last) = words.own.last_mut() {
            *last = 0;
        }
        words.bytes_mut(bytes.len()).copy_from_slice(bytes);
        words
    }
}

impl Clone for AlignedWords {
    fn clone(&self) -> AlignedWords {
        if let Some(memory) = &self.foreign {
            return AlignedWords::of(memory.bytes());
        }
        let mut words = AlignedWords::unfilled(self.own.len());
        words.own.copy_from_slice(&self.own);
        words
    }
}

impl Drop for AlignedWords {
    fn drop(&mut self) {
        if self.own.capacity() >= SMALL {
            keep(std::mem::take(&mut self.own).into_vec());
        }
    }
}

/// Rounds `n` up to a size class: a multiple of a quarter of the power of two below it. Arrays of similar size share a class.
fn roomy(n: usize) -> usize {
    if !(SMALL..LARGE).contains(&n) {
        return n;
    }
    n.next_multiple_of(1 << (n.ilog2() - 2))
}

/// Free lists of one thread, one for each size class of [`roomy`].
struct ThreadFreeLists([Vec<Vec<u64>>; LISTS]);

const LISTS: usize = 4 * (LARGE.ilog2() - SMALL.ilog2()) as usize + 1;

/// Index of the free list for size class `roomy`.
fn list(roomy: usize) -> usize {
    let log = roomy.ilog2();
    4 * (log - SMALL.ilog2()) as usize + ((roomy >> (log - 2)) & 3)
}

impl ThreadFreeLists {
    fn take(&mut self, n: usize) -> Option<Vec<u64>> {
        self.0[list(roomy(n))].pop()
    }

    fn keep(&mut self, v: Vec<u64>) {
        let n = v.capacity();
        let list = &mut self.0[list(n)];
        if roomy(n) == n && list.len() < NEAR / n {
            list.push(v);
        }
    }
}

/// Free list shared by all threads, oldest first.
struct SharedFreeList {
    spare: Vec<Vec<u64>>,
    words: usize,
    limit: usize,
}

impl SharedFreeList {
    const fn new(limit: usize) -> SharedFreeList {
        SharedFreeList { spare: Vec::new(), words: 0, limit }
    }

    /// Takes storage of at least `n` words and at most half as many more.
    fn take(&mut self, n: usize) -> Option<Vec<u64>> {
        let fits = |v: &Vec<u64>| (n..=n + n / 2).contains(&v.capacity());
        let found = self.spare.remove(self.spare.iter().rposition(fits)?);
        self.words -= found.capacity();
        Some(found)
    }

    /// Adds storage to the list; returns the oldest entries that are evicted for it.
    fn keep(&mut self, v: Vec<u64>) -> SmallVec<[Vec<u64>; 1]> {
        self.words += v.capacity();
        self.spare.push(v);
        let mut out = SmallVec::new();
        while self.words > self.limit || self.spare.len() > PLACES {
            let oldest = self.spare.remove(0);
            self.words -= oldest.capacity();
            out.push(oldest);
        }
        out
    }
}

thread_local! {
    static OWN: RefCell<ThreadFreeLists> = const { RefCell::new(ThreadFreeLists([const { Vec::new() }; LISTS])) };
}
static SHARED: Mutex<SharedFreeList> = Mutex::new(SharedFreeList::new(FAR));

fn take(n: usize) -> Option<Vec<u64>> {
    match n {
        0..SMALL => None,
        SMALL..LARGE => OWN.try_with(|near| near.borrow_mut().take(n)).ok()?,
        _ => SHARED.lock().unwrap_or_else(PoisonError::into_inner).take(n),
    }
}

fn keep(v: Vec<u64>) {
    match v.capacity() {
        // Fails while the thread exits; the storage is then freed.
        ..LARGE => drop(OWN.try_with(|near| near.borrow_mut().keep(v))),
        _ => {
            let out = SHARED.lock().unwrap_or_else(PoisonError::into_inner).keep(v);
            // Freed outside of the lock.
            drop(out);
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/words.rs"]
mod tests;
