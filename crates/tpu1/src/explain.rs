//! One tile on its way through the array, in words and as pictures of characters.

use crate::chip::Tpu1Chip;

/// The row of input that the cell in row `k` and column `m` multiplies in a cycle, counted from the first value's; none
/// before and after.
pub fn row_in(cycle: usize, k: usize, m: usize, rows: usize) -> Option<usize> {
    cycle.checked_sub(k + m).filter(|row| *row < rows)
}

/// Cells of the picture: a small array stands for the large one.
const CELLS: usize = 5;
/// Rows of input in the picture.
const ROWS: usize = 3;

/// A tile's way through the chip's array.
pub fn explain(chip: &Tpu1Chip, rows: usize) -> String {
    let n = chip.matrix;
    let fetch = chip.fetch_cycles();
    let ns = |cycles: f64| cycles / chip.clock_mhz * 1e3;
    let mut lines = vec![
        format!(
            "One tile of {n} × {n} weights and a block of {rows} rows, on an array of {n} × {n} multipliers at {} MHz",
            chip.clock_mhz
        ),
        String::new(),
        format!(
            "1. fetch      read_weights sends an address and is done. {} bytes come from the weight memory at {} GB/s: {fetch:.0}\n   \
             \x20          cycles ({:.2} µs). {} tiles wait in the queue; the next is asked for when one has left it.",
            chip.tile_bytes(),
            chip.bandwidth_gb,
            ns(fetch) / 1e3,
            chip.fifo
        ),
        format!(
            "2. shift      Weights move down from the top, a row a cycle, into the second register of each cell: {n} cycles. The\n   \
             \x20          tile before goes on multiplying with the first: that is the double buffer."
        ),
        format!(
            "3. multiply   Row b of the input enters row k of the array in cycle b + k (the systolic data setup delays it), moves\n   \
             \x20          right, and each cell adds weight × value to the sum from above. {rows} rows take {rows} cycles."
        ),
        format!(
            "4. drain      The sum of column m leaves in cycle b + {n} + m, so the first after {n} cycles and the last after {} of\n   \
             \x20          the pass's beginning, into {} accumulators of 32 bits. The next tile need not wait for that: a mark\n   \
             \x20          on the first row of the next block makes each second register the first as the wave passes.",
            rows + 2 * n - 1,
            chip.accumulators
        ),
        String::new(),
        format!(
            "The wave on {CELLS} × {CELLS} cells and {ROWS} rows (a digit is the row that a cell multiplies, · is no row):"
        ),
        String::new(),
    ];
    lines.extend(pictures());
    let (wait, limit) = (fetch - rows as f64, fetch.max(rows as f64));
    lines.push(String::new());
    lines.push(match wait > 0.0 {
        true => format!(
            "The tile is used for {rows} cycles and the next takes {fetch:.0} to come: the array is idle {wait:.0} of {limit:.0} cycles. \
             A batch of {:.0}\nor more rows would keep it busy; that is what the roofline says.",
            fetch.ceil()
        ),
        false => format!("The tile is used for {rows} cycles and the next takes {fetch:.0} to come: memory keeps up, and the array is never idle."),
    });
    lines.join("\n")
}

/// Cycles beside each other.
fn pictures() -> Vec<String> {
    let cycles: Vec<usize> = (0..ROWS + 2 * CELLS - 2).collect();
    let mut lines = Vec::new();
    for group in cycles.chunks(6) {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let title = |c: &usize| format!("{:<13}", format!("cycle {c}"));
        lines.push(format!("   {}", group.iter().map(title).collect::<String>().trim_end()));
        for k in 0..CELLS {
            let cell = |c: usize, m: usize| row_in(c, k, m, ROWS).map_or("· ".into(), |b| format!("{b} "));
            let row = |c: &usize| format!("{:<13}", (0..CELLS).map(|m| cell(*c, m)).collect::<String>());
            lines.push(format!("   {}", group.iter().map(row).collect::<String>().trim_end()));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_has_the_numbers_of_the_chip() {
        let text = explain(&Tpu1Chip::v1(), 200);
        for words in ["1425\n", "256 cycles. The", "after 711 of", "idle 1225 of 1425", "cycle 10"] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(explain(&Tpu1Chip::v1(), 2000).contains("never idle"));
        assert_eq!([row_in(3, 1, 1, 2), row_in(1, 1, 1, 2), row_in(4, 1, 1, 2)], [Some(1), None, None]);
    }
}
