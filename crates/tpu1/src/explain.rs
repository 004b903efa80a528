//! Explains one tile's pass through the systolic array in text, with ASCII diagrams of the wavefront.

use crate::chip::Tpu1Chip;

/// Returns the input row that cell (`k`, `m`) multiplies in a cycle, counted from the first value's; `None` if it is
/// idle.
pub fn row_in(cycle: usize, k: usize, m: usize, rows: usize) -> Option<usize> {
    cycle.checked_sub(k + m).filter(|row| *row < rows)
}

/// Rows and columns of the diagram: a small array in place of the large one.
const CELLS: usize = 5;
/// Input rows in the diagram.
const ROWS: usize = 3;

/// Explains in text how `rows` rows pass through the systolic array.
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
            "1. fetch      read_weights sends an address and retires. {} bytes arrive from weight memory at {} GB/s: {fetch:.0}\n   \
             \x20          cycles ({:.2} µs). {} tiles fit into the FIFO; the next fetch starts when a tile has left it.",
            chip.tile_bytes(),
            chip.bandwidth_gb,
            ns(fetch) / 1e3,
            chip.fifo
        ),
        format!(
            "2. shift      Weights move down from the top, one row per cycle, into each cell's second register: {n} cycles. The\n   \
             \x20          previous tile keeps multiplying with the first register (double buffering)."
        ),
        format!(
            "3. multiply   Row b of the input enters row k of the array in cycle b + k (delayed by the systolic data setup) and\n   \
             \x20          moves right; each cell adds weight × value to the sum from above. {rows} rows take {rows} cycles."
        ),
        format!(
            "4. drain      The sum of column m leaves in cycle b + {n} + m: the first after {n} cycles. The last leaves after {} of\n   \
             \x20          the pass's cycles, into {} int32 accumulators. The next tile does not wait for that: a marker on\n   \
             \x20          the first row of the next block activates each cell's second register as the wave passes.",
            rows + 2 * n - 1,
            chip.accumulators
        ),
        String::new(),
        format!(
            "Wavefront on {CELLS} × {CELLS} cells with {ROWS} rows (a digit is the row that a cell multiplies, · is idle):"
        ),
        String::new(),
    ];
    lines.extend(pictures());
    let (wait, limit) = (fetch - rows as f64, fetch.max(rows as f64));
    lines.push(String::new());
    lines.push(match wait > 0.0 {
        true => format!(
            "The tile is used for {rows} cycles and the next fetch takes {fetch:.0}: the array is idle {wait:.0} of {limit:.0} cycles. \
             A batch of {:.0}\nor more rows would keep it busy, as the roofline shows.",
            fetch.ceil()
        ),
        false => format!("The tile is used for {rows} cycles and the next fetch takes {fetch:.0}: memory keeps up, and the array is never idle."),
    });
    lines.join("\n")
}

/// Returns the diagrams of all cycles, side by side.
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
        for words in ["1425\n", "256 cycles. The", "256 cycles. The", "idle 1225 of 1425", "cycle 10"] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(explain(&Tpu1Chip::v1(), 2000).contains("never idle"));
        assert_eq!([row_in(3, 1, 1, 2), row_in(1, 1, 1, 2), row_in(4, 1, 1, 2)], [Some(1), None, None]);
    }
}
