//! Register-level simulation of the systolic array, cycle by cycle; verifies the timing model on small sizes.
//!
//! Each cell holds a weight and the next tile's weight. In each cycle it takes a value from the left and a partial sum
//! from above. One cycle later it passes the value to the right and the updated sum down. Input rows enter skewed:
//! values of array row `k` enter `k` cycles late. A marker travels with the first row of a block; where it passes, the
//! next weight becomes the current one, so blocks follow each other without a gap. The next weights shift in from the
//! top, in skewed columns. That shift may start in the same cycle as the previous block and runs one cell behind its
//! wavefront.

use std::collections::VecDeque;

/// Registers of one cell.
#[derive(Clone, Copy, Debug, Default)]
struct ArrayCell {
    weight: i8,
    next: i8,
    /// Value moving right, with the marker of a block's first row.
    value: Option<(i8, bool)>,
    /// Sum moving down, and whether it belongs to a row.
    sum: i32,
    is_sum: bool,
}

/// Register-level model of the systolic array (matrix unit).
#[derive(Clone, Debug)]
pub struct SystolicArray {
    rows: usize,
    columns: usize,
    cells: Vec<ArrayCell>,
}

impl SystolicArray {
    /// Creates a systolic array of `rows` × `columns` cells.
    pub fn new(rows: usize, columns: usize) -> SystolicArray {
        SystolicArray { rows, columns, cells: vec![ArrayCell::default(); rows * columns] }
    }

    /// Simulates one cycle. `values`: the value that enters each row. `shift`: for each column into which a tile is
    /// shifted, the number of cycles since the start of the shift and the weight that enters. Returns the sums that
    /// leave each column.
    fn step(
        &mut self,
        values: impl Fn(usize) -> Option<(i8, bool)>,
        shift: impl Fn(usize) -> Option<(usize, i8)>,
    ) -> Vec<Option<i32>> {
        // The accumulators receive the last row's registers.
        let last = (self.rows - 1) * self.columns;
        let left = self.cells[last..].iter().map(|c| c.is_sum.then_some(c.sum)).collect();
        // From the last cell to the first, so that the neighbors above and to the left still have the previous cycle's
        // values.
        for m in (0..self.columns).rev() {
            let shifted = shift(m);
            for k in (0..self.rows).rev() {
                let at = k * self.columns + m;
                let value = if m == 0 { values(k) } else { self.cells[at - 1].value };
                let above = if k == 0 { ArrayCell::default() } else { self.cells[at - self.columns] };
                let cell = &mut self.cells[at];
                if let Some((_, true)) = value {
                    cell.weight = cell.next;
                }
                let product = value.map_or(0, |(x, _)| i32::from(x) * i32::from(cell.weight));
                cell.sum = above.sum.wrapping_add(product);
                cell.is_sum = value.is_some();
                cell.value = value;
                match shifted {
                    // The first of the new weights has reached this row.
                    Some((cycles, _)) if k > 0 && k <= cycles => cell.next = above.next,
                    Some((_, entering)) if k == 0 => cell.next = entering,
                    _ => {}
                }
            }
        }
        left
    }

    /// Returns the cells that hold a value in this cycle: the wavefront of a block.
    pub fn busy(&self) -> Vec<bool> {
        self.cells.iter().map(|c| c.value.is_some()).collect()
    }
}

/// A block of input rows and the weight tile it is multiplied by.
#[derive(Clone, Debug)]
pub struct ArrayBlock {
    /// `rows × array rows` values, row-major.
    pub values: Vec<i8>,
    /// `array rows × array columns` weights.
    pub tile: Vec<i8>,
}

/// Results and timing of a systolic array simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayResult {
    /// Sums of each block, `rows × array columns`.
    pub sums: Vec<Vec<i32>>,
    /// Cycles until the last sum leaves the array.
    pub cycles: usize,
    /// Cycle in which the first value of each block enters.
    pub began: Vec<usize>,
}

/// Control logic around the array; it depends only on the current cycle.
struct ArrayControl<'a> {
    blocks: &'a [ArrayBlock],
    size: [usize; 2],
    /// Cycles per tile fetch, and capacity of the FIFO in tiles.
    fetch: usize,
    fifo: usize,
    /// End of the fetch in progress.
    fetching: Option<usize>,
    asked: usize,
    queue: VecDeque<usize>,
    /// Tiles in the FIFO or being fetched, until they have been shifted in.
    held: usize,
    /// Start of each tile's shift, in its first column.
    shifts: Vec<usize>,
    /// Whether the last shift has ended and no block uses its tile yet.
    is_next_full: bool,
    /// Whether the next-tile registers may be overwritten.
    is_next_free: bool,
    began: Vec<usize>,
}

impl ArrayControl<'_> {
    fn rows(&self, block: usize) -> usize {
        self.blocks[block].values.len() / self.size[0]
    }

    /// Handles events at the start of a cycle.
    fn tick(&mut self, cycle: usize) {
        if self.shifts.last().is_some_and(|since| cycle == since + self.size[0]) {
            self.is_next_full = true;
            self.held -= 1;
        }
        loop {
            if self.fetching.is_some_and(|end| end <= cycle) {
                self.queue.push_back(self.asked - 1);
                self.fetching = None;
            }
            if self.fetching.is_some() || self.asked == self.blocks.len() || self.held == self.fifo {
                break;
            }
            self.fetching = Some(cycle + self.fetch);
            self.asked += 1;
            self.held += 1;
        }
        let ended = self.began.last().is_none_or(|b| b + self.rows(self.began.len() - 1) <= cycle);
        if self.is_next_full && ended {
            self.began.push(cycle);
            (self.is_next_full, self.is_next_free) = (false, true);
        }
        if self.is_next_free && self.queue.pop_front().is_some() {
            self.shifts.push(cycle);
            self.is_next_free = false;
        }
    }

    /// Returns the value that enters row `k` of the array.
    fn value(&self, cycle: usize, k: usize) -> Option<(i8, bool)> {
        // Blocks overlap because of the skew: lower rows still process the previous block.
        let at = |n: usize| cycle.checked_sub(self.began[n] + k).filter(|row| *row < self.rows(n));
        let n = (0..self.began.len()).rev().take(self.size[0] + 1).find(|n| at(*n).is_some())?;
        let row = at(n)?;
        Some((self.blocks[n].values[row * self.size[0] + k], row == 0))
    }

    /// Returns the weight that is shifted into column `m`, if any.
    fn weight(&self, cycle: usize, m: usize) -> Option<(usize, i8)> {
        // Because of the skew, columns on the right may be some tiles behind.
        let at = |tile: usize| cycle.checked_sub(self.shifts[tile] + m).filter(|t| *t < self.size[0]);
        let tile = (0..self.shifts.len()).rev().take(self.size[1] + 1).find(|tile| at(*tile).is_some())?;
        let cycles = at(tile)?;
        // The last row's weight travels farthest, so it enters first.
        Some((cycles, self.blocks[tile].tile[(self.size[0] - 1 - cycles) * self.size[1] + m]))
    }
}

/// Multiplies blocks one after the other on an array of `size` (rows, columns). Tiles are fetched in `fetch` cycles
/// each into a FIFO of `fifo` tiles.
///
/// # Panics
/// If a block's values or tile do not match the array's size, or if the FIFO has no capacity.
pub fn run(size: [usize; 2], fetch: usize, fifo: usize, blocks: &[ArrayBlock]) -> ArrayResult {
    let [rows, columns] = size;
    assert!(fifo > 0 && rows > 0 && columns > 0, "the FIFO and the array must not be empty");
    assert!(blocks.iter().all(|b| b.tile.len() == rows * columns && b.values.len() % rows == 0));
    let mut array = SystolicArray::new(rows, columns);
    let mut control = ArrayControl {
        blocks,
        size,
        fetch,
        fifo,
        fetching: None,
        asked: 0,
        queue: VecDeque::new(),
        held: 0,
        shifts: Vec::new(),
        is_next_full: false,
        is_next_free: true,
        began: Vec::new(),
    };
    let wanted: usize = blocks.iter().map(|b| b.values.len() / rows * columns).sum();
    let mut left = vec![Vec::new(); columns];
    let (mut cycle, mut seen) = (0, 0);
    while seen < wanted {
        control.tick(cycle);
        for (m, sum) in
            array.step(|k| control.value(cycle, k), |m| control.weight(cycle, m)).into_iter().enumerate()
        {
            seen += usize::from(sum.is_some());
            left[m].extend(sum);
        }
        cycle += 1;
    }
    let mut sums = Vec::new();
    let mut first = 0;
    for n in 0..blocks.len() {
        let count = control.rows(n);
        sums.push((first..first + count).flat_map(|b| left.iter().map(move |c| c[b])).collect());
        first += count;
    }
    ArrayResult { sums, cycles: cycle, began: control.began }
}

// Names of the previous version.
systole_base::renamed! { Array => SystolicArray, Block => ArrayBlock, Outcome => ArrayResult }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::Tpu1Chip;
    use crate::timing::{UnitEvent, timing};
    use systole_base::rng::RandomStream;

    fn bytes(draw: &mut RandomStream, n: usize) -> Vec<i8> {
        (0..n.div_ceil(4)).flat_map(|_| draw.next_u32().to_le_bytes()).take(n).map(|b| b as i8).collect()
    }

    fn plain(block: &ArrayBlock, [k, m]: [usize; 2]) -> Vec<i32> {
        let rows = block.values.chunks(k);
        let sum = |row: &[i8], c: usize| -> i32 {
            row.iter().enumerate().map(|(i, &x)| i32::from(x) * i32::from(block.tile[i * m + c])).sum()
        };
        rows.flat_map(|row| (0..m).map(|c| sum(row, c)).collect::<Vec<_>>()).collect()
    }

    /// Compares sums and cycles with the event model, which excludes the last sum's way out of the array.
    fn check(size: [usize; 2], fetch: usize, blocks: &[ArrayBlock]) {
        let out = run(size, fetch, 4, blocks);
        for (block, sums) in blocks.iter().zip(&out.sums) {
            assert_eq!(*sums, plain(block, size), "{size:?}");
        }
        let mut chip = Tpu1Chip { matrix: size[0], sync: 0.0, fixed_us: 0.0, bubble: 0.0, ..Tpu1Chip::v1() };
        // The bandwidth at which a tile takes `fetch` cycles.
        chip.bandwidth_gb = chip.tile_bytes() as f64 * chip.clock_mhz * 1e6 / 1e9 / fetch.max(1) as f64;
        if fetch == 0 {
            chip.bandwidth_gb = 1e30;
        }
        let pass = |b: &ArrayBlock| UnitEvent::Pass { rows: b.values.len() / size[0], slow: 1, switch: true };
        let events = timing(&chip, blocks.iter().map(pass));
        let drain = (size[0] + size[1] - 1) as f64;
        assert!((events.cycles + drain - out.cycles as f64).abs() < 1e-6, "{size:?} {fetch}: {}", out.cycles);
        for (times, began) in events.passes.iter().zip(&out.began) {
            assert!((times.multiply[0] - *began as f64).abs() < 1e-6, "{size:?} {fetch}: {:?}", out.began);
        }
    }

    fn block(draw: &mut RandomStream, [k, m]: [usize; 2], rows: usize) -> ArrayBlock {
        ArrayBlock { values: bytes(draw, rows * k), tile: bytes(draw, k * m) }
    }

    /// Two consecutive blocks: the second tile is shifted in while the first block is multiplied.
    #[test]
    fn every_size_up_to_16_by_16_by_64_takes_the_cycles_of_the_event_model() {
        let mut draw = RandomStream::new(33, 0, 0);
        for k in 1..=16 {
            for m in 1..=16 {
                for rows in 1..=64 {
                    let blocks = [block(&mut draw, [k, m], rows), block(&mut draw, [k, m], 1 + rows / 3)];
                    check([k, m], 0, &blocks);
                }
            }
        }
    }

    /// Many blocks of different lengths, with a memory that is sometimes faster and sometimes slower than the array.
    #[test]
    fn late_weights_stall_the_array_as_the_event_model_says() {
        let mut draw = RandomStream::new(34, 0, 0);
        for _ in 0..400 {
            let size = [1 + draw.below(16) as usize, 1 + draw.below(16) as usize];
            let fetch = draw.below(60) as usize;
            let n = 1 + draw.below(12);
            let mut blocks = Vec::new();
            for _ in 0..n {
                let rows = 1 + draw.below(40) as usize;
                blocks.push(block(&mut draw, size, rows));
            }
            check(size, fetch, &blocks);
        }
    }

    /// The paper's numbers for 256 × 256: a row's first sum after 256 cycles, the last of a pass of B rows after B +
    /// 511.
    #[test]
    fn a_pass_drains_as_the_full_array_does() {
        let size = [32, 32];
        let one = block(&mut RandomStream::new(35, 0, 0), size, 5);
        let out = run(size, 0, 4, std::slice::from_ref(&one));
        assert_eq!(out.cycles - out.began[0], 5 + 2 * 32 - 1);
        assert_eq!(out.began, [32]);
    }
}
