//! Unit tests of private functions of the host arrays' storage, kept apart from the source.

use super::*;

#[test]
fn zeros_are_zeros_in_storage_that_was_used() {
    for n in [0, 1, 2, 3, SMALL, SMALL + 40, LARGE - 1, LARGE, LARGE + 1000] {
        for _ in 0..3 {
            let mut x = AlignedWords::zeros(n);
            assert!(x.len() == n && x.iter().all(|&w| w == 0));
            x.fill(7);
            assert!(x.clone().iter().all(|&w| w == 7));
        }
    }
    let bytes: Vec<u8> = (0..4099u32).map(|i| i as u8).collect();
    for _ in 0..2 {
        let words = AlignedWords::of(&bytes);
        let back: &[u8] = bytemuck::cast_slice(&words);
        assert!(back[..4099] == bytes && back[4099..] == [0; 5], "zeros after the last byte");
    }
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
