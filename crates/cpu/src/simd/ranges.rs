//! Partitions loops into pieces of nearly equal size.

/// Partitions `0..n` into as few pieces of at most `most` as possible, of nearly equal size. Returns `(start, size)` of
/// each.
pub fn pieces(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = n.div_ceil(most.max(1)).max(1);
    let (size, larger) = (n / count, n % count);
    (0..count).filter(move |_| n > 0).map(move |i| (i * size + i.min(larger), size + usize::from(i < larger)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        for n in 0..50 {
            for most in 1..9 {
                let all: Vec<(usize, usize)> = pieces(n, most).collect();
                assert_eq!(all.len(), n.div_ceil(most));
                assert_eq!(all.iter().map(|p| p.1).sum::<usize>(), n);
                assert!(all.iter().all(|p| p.1 > 0 && p.1 <= most));
                assert!(all.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0));
            }
        }
    }
}
