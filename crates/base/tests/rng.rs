//! Random number generator: published test vectors, and moments of its distributions.

use systole_base::rng::{RandomStream, hash_name, philox4x32};

#[test]
fn philox_matches_the_published_vectors() {
    // Random123 1.14, kat_vectors.
    assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
    assert_eq!(philox4x32([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    assert_eq!(
        philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
        [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
    );
}

#[test]
fn draws_have_the_right_moments() {
    let mut s = RandomStream::new(1, hash_name("test"), 0);
    let n = 100_000;
    let normals: Vec<f64> = (0..n).map(|_| s.normal()).collect();
    let mean = normals.iter().sum::<f64>() / n as f64;
    let var = normals.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
    assert!(mean.abs() < 0.015 && (var - 1.0).abs() < 0.02, "{mean} {var}");
    let mut counts = [0u32; 7];
    (0..70_000).for_each(|_| counts[s.below(7) as usize] += 1);
    assert!(counts.iter().all(|&c| (9_500..10_500).contains(&c)), "{counts:?}");
    assert!((0..1000).all(|_| (0.0..1.0).contains(&s.uniform())));
}

#[test]
fn any_draw_can_be_gone_to() {
    let mut whole = RandomStream::new(3, 4, 5);
    let draws: Vec<u32> = (0..20).map(|_| whole.next_u32()).collect();
    for at in 0..20 {
        let mut s = RandomStream::new(3, 4, 5);
        assert_eq!(s.drawn(), 0);
        s.seek(at);
        assert_eq!((s.drawn(), s.next_u32()), (at, draws[at as usize]));
    }
}

#[test]
fn streams_and_indices_are_independent() {
    let first = |seed, stream, index| RandomStream::new(seed, stream, index).next_u64();
    let draws = [first(0, 0, 0), first(1, 0, 0), first(0, 1, 0), first(0, 0, 1)];
    for i in 0..4 {
        for j in 0..i {
            assert_ne!(draws[i], draws[j]);
        }
    }
}
