//! Unit tests of private functions of the host arrays' storage, kept apart from the source.

use super::*;

#[test]
fn zeros_are_zeros_in_storage_that_was_used() {
    for n in [0, 1, 2, 3, SMALL, SMALL + 40, LARGE - 1, LARGE, LARGE + 1000] {
        for _ in 0..3 {
            let mut x = AlignedWords::zeros(n);
            assert!(x.bytes(8 * n).iter().all(|&w| w == 0));
            x.bytes_mut(8 * n).fill(7);
            assert!(x.clone().bytes(8 * n).iter().all(|&w| w == 7));
        }
    }
    let bytes: Vec<u8> = (0..4099u32).map(|i| i as u8).collect();
    for _ in 0..2 {
        let words = AlignedWords::of(&bytes);
        let back = words.bytes(4104);
        assert!(back[..4099] == bytes && back[4099..] == [0; 5], "zeros after the last byte");
    }
}

/// Memory that counts its releases.
struct OtherMemory(Vec<u64>, Arc<std::sync::atomic::AtomicUsize>);

impl ForeignMemory for OtherMemory {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Drop for OtherMemory {
    fn drop(&mut self) {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn memory_of_another_library_is_read_in_place_and_copied_by_a_write() {
    let released = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let memory = Arc::new(OtherMemory(vec![1, 2], released.clone()));
    let start = memory.bytes().as_ptr();
    let mut x = AlignedWords::foreign(memory);
    assert_eq!((x.bytes(16).as_ptr(), x.bytes(8)), (start, &[1, 0, 0, 0, 0, 0, 0, 0][..]));
    let copy = x.clone();
    assert!(copy.bytes(16) == x.bytes(16) && copy.bytes(16).as_ptr() != start);
    assert_eq!(released.load(std::sync::atomic::Ordering::Relaxed), 0);
    x.bytes_mut(16)[0] = 7;
    assert_eq!((x.bytes(16)[0], copy.bytes(16)[0]), (7, 1));
    assert_eq!(released.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_thread_keeps_storage_by_size() {
    let mut near = ThreadFreeLists([const { Vec::new() }; LISTS]);
    for n in SMALL..LARGE {
        let size = roomy(n);
        assert!(size >= n && size <= n + n / 4 + 1 && roomy(size) == size && list(size) < LISTS);
        assert!(near.take(n).is_none());
        near.keep(Vec::with_capacity(size));
        assert_eq!(near.take(n).map(|v| v.capacity()), Some(size));
    }
    near.keep(Vec::with_capacity(SMALL + 1));
    assert!(near.0.iter().all(Vec::is_empty), "belongs to no size class");
    (0..2 * NEAR / SMALL).for_each(|_| near.keep(Vec::with_capacity(SMALL)));
    assert_eq!(near.0[0].len(), NEAR / SMALL);
}

#[test]
fn large_storage_is_kept_within_a_limit_and_given_to_what_fits() {
    let mut far = SharedFreeList::new(100);
    let of = |n| Vec::with_capacity(n);
    assert!(far.keep(of(60)).is_empty() && far.keep(of(40)).is_empty());
    assert_eq!(far.keep(of(30)).len(), 1, "the oldest is evicted");
    assert!(far.take(50).is_none() && far.take(19).is_none());
    assert_eq!(far.take(35).map(|v| v.capacity()), Some(40));
    assert_eq!(far.take(20).map(|v| v.capacity()), Some(30));
    assert_eq!(far.words, 0);
    assert_eq!(far.keep(of(101)).len(), 1, "larger than the limit");
    (0..2 * PLACES).for_each(|_| drop(far.keep(of(1))));
    assert_eq!(far.spare.len(), PLACES);
}
