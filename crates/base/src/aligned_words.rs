//! [`AlignedWords`]: the storage of host arrays.
//!
//! A scalar needs no memory of its own. Large storage that is given up is kept for the next array of about its size: the
//! system hands pages out one fault at a time and clears each, which costs a pipeline's batches more than filling them.

use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Words that need no memory of their own.
const INLINE: usize = 2;
/// Words below which the allocator's own lists of free memory do as well.
const SMALL: usize = 64;
/// Words from which on storage is kept for all threads (32 KiB).
const LARGE: usize = 4 << 10;
/// What one thread keeps of one size (128 KiB), and what is kept for all (32 MiB), in words.
const NEAR: usize = 16 << 10;
const FAR: usize = 4 << 20;
/// Large arrays that are kept, at most: they are searched from end to end.
const PLACES: usize = 16;

/// 64-bit words: an alignment of 8 bytes without unsafe code.
pub(crate) struct AlignedWords(SmallVec<[u64; INLINE]>);

impl AlignedWords {
    pub fn zeros(n: usize) -> AlignedWords {
        let mut words = AlignedWords::unfilled(n);
        words.fill(0);
        words
    }

    /// Words with anything in them.
    pub fn unfilled(n: usize) -> AlignedWords {
        let Some(mut spare) = take(n) else {
            if n < SMALL {
                return AlignedWords(SmallVec::from_elem(0, n));
            }
            let mut fresh = vec![0; roomy(n)];
            fresh.truncate(n);
            return AlignedWords(SmallVec::from_vec(fresh));
        };
        spare.resize(n, 0);
        AlignedWords(SmallVec::from_vec(spare))
    }

    /// Bytes as words, zeros behind the last.
    pub fn of(bytes: &[u8]) -> AlignedWords {
        let mut words = AlignedWords::unfilled(bytes.len().div_ceil(8));
        if let Some(last) = words.last_mut() {
            *last = 0;
        }
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        words
    }
}

impl Clone for AlignedWords {
    fn clone(&self) -> AlignedWords {
        let mut words = AlignedWords::unfilled(self.len());
        words.copy_from_slice(self);
        words
    }
}

impl Deref for AlignedWords {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl DerefMut for AlignedWords {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

impl Drop for AlignedWords {
    fn drop(&mut self) {
        if self.0.capacity() >= SMALL {
            keep(std::mem::take(&mut self.0).into_vec());
        }
    }
}

/// `n` rounded up to a multiple of a quarter of the power of two below it, so that arrays of about one size have storage
/// of one size.
fn roomy(n: usize) -> usize {
    if !(SMALL..LARGE).contains(&n) {
        return n;
    }
    n.next_multiple_of(1 << (n.ilog2() - 2))
}

/// What one thread keeps: lists of storage of one size each, those of [`roomy`].
struct ThreadFreeLists([Vec<Vec<u64>>; LISTS]);

const LISTS: usize = 4 * (LARGE.ilog2() - SMALL.ilog2()) as usize + 1;

/// The list of storage of `roomy` words.
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

/// What is kept for all, oldest first.
struct SharedFreeList {
    spare: Vec<Vec<u64>>,
    words: usize,
    limit: usize,
}

impl SharedFreeList {
    const fn new(limit: usize) -> SharedFreeList {
        SharedFreeList { spare: Vec::new(), words: 0, limit }
    }

    /// One of at least `n` words, and not of many more.
    fn take(&mut self, n: usize) -> Option<Vec<u64>> {
        let fits = |v: &Vec<u64>| (n..=n + n / 2).contains(&v.capacity());
        let found = self.spare.remove(self.spare.iter().rposition(fits)?);
        self.words -= found.capacity();
        Some(found)
    }

    /// Keeps storage; what was kept longest makes room and comes back.
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
        // A thread that ends keeps nothing any more.
        ..LARGE => drop(OWN.try_with(|near| near.borrow_mut().keep(v))),
        _ => {
            let out = SHARED.lock().unwrap_or_else(PoisonError::into_inner).keep(v);
            // Given back to the system outside of the lock.
            drop(out);
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/words.rs"]
mod tests;
