//! Event-based timing model of TPU v1: when each unit works, and how the systolic array's cycles are spent.
//!
//! The rules: weight tiles are fetched one after the other into a FIFO of four. A slot is free once its tile has been
//! shifted into the array. The shift takes one cycle per array row, into registers that are free once the previous tile
//! has become active. A multiplication starts when its weights are loaded, the previous one has ended and its input is
//! ready. Input arrives from the host while the array works. Idle time is attributed, in this order, to input
//! (non-matrix), tile (stall) and shift, as by the counters of the paper's Table 3.
//!
//! The counter of read-after-write stalls overlaps the others, as in the paper, where it exceeds the non-matrix cycles
//! of CNN1. It counts idle cycles of the array while a layer waits at issue for the results of the previous one. The
//! array has two tiles, one active and one in the shadow registers, so the wait starts [`ISSUE_AHEAD`] passes early.

use crate::chip::Tpu1Chip;
use std::collections::VecDeque;

/// Passes over the array that are issued before they run: one per weight register of the array.
pub const ISSUE_AHEAD: usize = 2;

/// Event of a TPU v1 program that takes time on some unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnitEvent {
    /// Bytes from the host that the following passes wait for. The transfer overlaps with earlier passes.
    Input(f64),
    /// A pass of rows over the array.
    Pass {
        /// Number of input rows.
        rows: usize,
        /// Cycles per row: 1; 2 for 8 × 16 bits; 4 for 16 × 16 bits.
        slow: usize,
        /// Whether it uses the next weight tile, not the previous one again.
        switch: bool,
    },
    /// Cycles until accumulators are free for the next pass; no wait at the end.
    Empty(f64),
    /// Cycles of the activation unit that do not overlap with passes.
    Vector(f64),
    /// Waits until the previous layer's results are readable.
    Sync,
}

/// Start and end of each unit's work for one pass, in cycles since the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassTimes {
    /// Fetch of the tile from memory; `None` if the previous tile is reused.
    pub fetch: Option<[f64; 2]>,
    /// Shift of the tile into the array.
    pub shift: Option<[f64; 2]>,
    /// Multiplication of the rows.
    pub multiply: [f64; 2],
}

/// Cycles of a batch, and their breakdown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchTiming {
    /// Total cycles.
    pub cycles: f64,
    /// Cycles in which the array multiplied.
    pub active: f64,
    /// Cycles that waited for a weight tile from memory.
    pub stall: f64,
    /// Cycles that waited for a tile to be shifted in.
    pub shift: f64,
    /// Cycles that waited for anything else: the sum of the next five.
    pub non_matrix: f64,
    /// Cycles that waited for results of the previous layer (read after write), and for nothing else.
    pub raw: f64,
    /// Cycles that waited for accumulators to be read by the activation unit.
    pub accumulators: f64,
    /// Cycles that waited for input from the host.
    pub input: f64,
    /// Cycles for the start of the batch, its instructions and its end.
    pub fixed: f64,
    /// Cycles between two passes.
    pub bubble: f64,
    /// Counter of read-after-write stalls: `raw`, and idle cycles before the last passes of the previous layer.
    pub raw_counter: f64,
    /// Number of weight tiles.
    pub tiles: usize,
    /// Times of each pass.
    pub passes: Vec<PassTimes>,
}

/// Conditions other than weights that the next multiplication waits for.
#[derive(Default)]
struct PendingWaits {
    fixed: f64,
    input: f64,
    raw: f64,
    accumulators: f64,
    bubble: f64,
}

impl PendingWaits {
    fn total(&self) -> f64 {
        self.fixed + self.input + self.raw + self.accumulators + self.bubble
    }
}

/// Computes the timing of a batch on a chip.
pub fn timing(chip: &Tpu1Chip, events: impl IntoIterator<Item = UnitEvent>) -> BatchTiming {
    let fixed = chip.fixed_us * chip.clock_mhz;
    let mut run = TimingRun {
        chip,
        fetch: chip.fetch_cycles(),
        pending: PendingWaits { fixed, ..PendingWaits::default() },
        arrived: fixed,
        idle: [0.0; ISSUE_AHEAD],
        synced: false,
        fetched: 0.0,
        began: 0.0,
        ended: 0.0,
        shifted: VecDeque::new(),
        after: 0.0,
        told: BatchTiming::default(),
    };
    events.into_iter().for_each(|e| run.event(e));
    run.finish()
}

struct TimingRun<'a> {
    chip: &'a Tpu1Chip,
    fetch: f64,
    pending: PendingWaits,
    /// Cycle in which the last byte from the host arrives.
    arrived: f64,
    /// Idle cycles of the array before the last passes.
    idle: [f64; ISSUE_AHEAD],
    /// Whether the next pass is the first of its layer.
    synced: bool,
    /// Cycle in which the last fetch ended.
    fetched: f64,
    /// Start and end of the last pass.
    began: f64,
    ended: f64,
    /// Ends of the last shifts, as many as the FIFO holds.
    shifted: VecDeque<f64>,
    /// Cycles of vector work since the last pass.
    after: f64,
    told: BatchTiming,
}

impl TimingRun<'_> {
    fn event(&mut self, event: UnitEvent) {
        match event {
            UnitEvent::Input(bytes) => self.arrived += self.chip.input_cycles(bytes),
            UnitEvent::Empty(cycles) => self.pending.accumulators += cycles,
            UnitEvent::Vector(cycles) => {
                self.pending.raw += cycles;
                self.after += cycles;
            }
            UnitEvent::Sync => {
                self.pending.bubble = 0.0;
                self.pending.raw += self.chip.sync_cycles();
                self.synced = true;
            }
            UnitEvent::Pass { rows, slow, switch } => self.pass((rows * slow) as f64, switch),
        }
    }

    fn pass(&mut self, cycles: f64, switch: bool) {
        self.pending.input = (self.arrived - self.ended - self.pending.total()).max(0.0);
        let ready = self.ended + self.pending.total();
        let (fetch, shift) = if switch { self.weights() } else { (None, None) };
        let weights = shift.map_or(self.ended, |s| s[1]);
        let begin = weights.max(self.ended).max(ready);
        self.told.non_matrix += ready - self.ended;
        let fetched = shift.map_or(ready, |s| s[0].clamp(ready, begin));
        self.told.stall += fetched - ready;
        self.told.shift += begin - fetched;
        self.count_raw(begin - self.ended);
        self.settle();
        let end = begin + cycles;
        self.told.active += cycles;
        self.told.passes.push(PassTimes { fetch, shift, multiply: [begin, end] });
        (self.began, self.ended, self.after) = (begin, end, 0.0);
        self.pending.bubble = self.chip.bubble_cycles();
    }

    /// Adds to the counter of read-after-write stalls; `idle`: cycles without work before this pass.
    fn count_raw(&mut self, idle: f64) {
        if std::mem::take(&mut self.synced) && !self.told.passes.is_empty() {
            self.told.raw_counter += self.pending.raw + self.idle.iter().sum::<f64>();
        }
        self.idle.rotate_left(1);
        self.idle[ISSUE_AHEAD - 1] = idle;
    }

    /// Fetches and shifts the next tile.
    fn weights(&mut self) -> (Option<[f64; 2]>, Option<[f64; 2]>) {
        let full = self.shifted.len() >= self.chip.fifo.max(1);
        let place = if full { self.shifted.pop_front().unwrap_or(0.0) } else { 0.0 };
        let fetch = self.fetched.max(place);
        self.fetched = fetch + self.fetch;
        let shift = self.fetched.max(self.began);
        let shifted = shift + self.chip.matrix as f64;
        self.shifted.push_back(shifted);
        self.told.tiles += 1;
        (Some([fetch, self.fetched]), Some([shift, shifted]))
    }

    fn settle(&mut self) {
        let p = std::mem::take(&mut self.pending);
        self.told.fixed += p.fixed;
        self.told.input += p.input;
        self.told.raw += p.raw;
        self.told.accumulators += p.accumulators;
        self.told.bubble += p.bubble;
    }

    /// Ends the batch. What remains after the last multiplication is part of the fixed cost, except for vector work.
    fn finish(mut self) -> BatchTiming {
        if !self.told.passes.is_empty() {
            self.pending = PendingWaits { raw: self.after, ..PendingWaits::default() };
            self.told.raw_counter += self.after;
        }
        self.pending.bubble = 0.0;
        self.told.non_matrix += self.pending.total();
        self.told.cycles = self.ended + self.pending.total();
        self.settle();
        self.told
    }
}

impl BatchTiming {
    /// Returns rows 1, 4, 5 and 6 of the TPU v1 paper's Table 3 (array active, weight stall, weight shift, non-matrix)
    /// as fractions of all cycles.
    pub fn shares(&self) -> [f64; 4] {
        [self.active, self.stall, self.shift, self.non_matrix].map(|part| part / self.cycles.max(1.0))
    }

    /// Returns the batch's cycles per weight tile.
    pub fn cycles_per_tile(&self) -> f64 {
        self.cycles / self.tiles.max(1) as f64
    }

    /// Returns the duration of the batch in seconds.
    pub fn seconds(&self, chip: &Tpu1Chip) -> f64 {
        self.cycles / (chip.clock_mhz * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers with equal numbers of tiles.
    fn layers(n: usize, tiles: usize, rows: usize, slow: usize, extra: f64) -> Vec<UnitEvent> {
        let mut events = Vec::new();
        for _ in 0..n {
            events.extend((0..tiles).map(|_| UnitEvent::Pass { rows, slow, switch: true }));
            events.extend([UnitEvent::Empty(extra), UnitEvent::Sync]);
        }
        events
    }

    /// Values of an independent implementation of the same rules, fitted to all five applications: cycles per tile and
    /// the four rows in percent.
    #[test]
    fn the_rules_give_what_they_gave_when_they_were_written_down() {
        let chip = Tpu1Chip { sync: 488.0, fixed_us: 40.0, bubble: 100.0, ..Tpu1Chip::v1() };
        let input = |bytes: usize| vec![UnitEvent::Input(bytes as f64)];
        let cases = [
            (
                "MLP0",
                [input(200 * 2000), layers(5, 64, 200, 1, 0.0)].concat(),
                1574.0,
                [12.7, 53.5, 16.0, 17.8],
            ),
            (
                "MLP1",
                [input(168 * 1150), layers(4, 22, 168, 1, 0.0)].concat(),
                1813.0,
                [9.3, 44.8, 13.3, 32.6],
            ),
        ];
        for (name, events, each, rows) in cases {
            let t = timing(&chip, events);
            assert!((t.cycles_per_tile() - each).abs() < 1.0, "{name}: {}", t.cycles_per_tile());
            for (is, should) in t.shares().iter().zip(rows) {
                assert!((100.0 * is - should).abs() < 0.1, "{name}: {:?}", t.shares());
            }
        }
        let cnn0 = [
            input(2888 * 48),
            layers(1, 8, 2888, 1, 2888.0),
            layers(12, 9, 2888, 1, 2888.0),
            layers(3, 1, 2888, 1, 2888.0),
        ];
        let t = timing(&chip, cnn0.concat());
        assert!((t.cycles_per_tile() - 3776.0).abs() < 30.0, "{}", t.cycles_per_tile());
        assert!((t.shares()[0] - 0.765).abs() < 0.005 && t.stall == 0.0 && t.shift == 0.0);
    }

    #[test]
    fn shares_are_all_of_the_cycles_and_parts_all_of_the_rest() {
        let t = timing(&Tpu1Chip::v1(), layers(3, 7, 50, 2, 30.0));
        assert!((t.shares().iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let parts = t.raw + t.accumulators + t.input + t.fixed + t.bubble;
        assert!((parts - t.non_matrix).abs() < 1e-6);
        assert_eq!(t.active, 3.0 * 7.0 * 100.0);
        assert_eq!((t.tiles, t.passes.len()), (21, 21));
    }

    #[test]
    fn vector_work_at_the_end_counts_and_what_only_a_pass_would_wait_for_does_not() {
        let chip = Tpu1Chip { fixed_us: 0.0, ..Tpu1Chip::v1() };
        let pass = UnitEvent::Pass { rows: 10, slow: 1, switch: true };
        let cycles = |after: UnitEvent| timing(&chip, [pass, after, UnitEvent::Sync]).cycles;
        assert_eq!(cycles(UnitEvent::Empty(50.0)), timing(&chip, [pass]).cycles);
        assert_eq!(cycles(UnitEvent::Vector(50.0)), timing(&chip, [pass]).cycles + 50.0);
        assert_eq!(timing(&chip, [UnitEvent::Vector(50.0)]).cycles, 50.0);
    }

    /// A transfer that is shorter than the passes before it costs nothing; the rest of a longer one is a wait.
    #[test]
    fn input_arrives_while_the_array_works() {
        let chip = Tpu1Chip { fixed_us: 0.0, ..Tpu1Chip::v1() };
        let pass = UnitEvent::Pass { rows: 10_000, slow: 1, switch: false };
        let bytes = 5_000.0 / chip.input_cycles(1.0);
        let both = timing(&chip, [UnitEvent::Input(bytes), pass, UnitEvent::Input(bytes), pass]);
        assert!((both.input - 5_000.0).abs() < 1e-6, "{}", both.input);
        let late = timing(&chip, [pass, UnitEvent::Input(4.0 * bytes), pass]);
        assert!((late.input - (10_000.0 - chip.bubble_cycles())).abs() < 1e-6, "{}", late.input);
    }

    /// The wait for a layer's results starts two passes before its end, and overlaps the wait for weights.
    #[test]
    fn stalls_of_results_count_from_the_last_passes_on() {
        let chip = Tpu1Chip { fixed_us: 0.0, ..Tpu1Chip::v1() };
        let t = timing(&chip, layers(2, 5, 10, 1, 0.0));
        let idle = |n: usize| t.passes[n].multiply[0] - t.passes[n - 1].multiply[1];
        assert!((t.raw_counter - (chip.sync_cycles() + idle(3) + idle(4))).abs() < 1e-6);
        assert!(t.raw_counter > t.raw && idle(3) > 1000.0);
        let one = timing(&chip, layers(1, 5, 10, 1, 0.0));
        assert_eq!(one.raw_counter, 0.0);
    }

    /// Weights that are already loaded are not fetched again and cost neither stall nor shift.
    #[test]
    fn a_pass_with_the_same_weights_needs_no_tile() {
        let chip = Tpu1Chip { fixed_us: 0.0, bubble: 0.0, ..Tpu1Chip::v1() };
        let pass = |switch| UnitEvent::Pass { rows: 10, slow: 1, switch };
        let t = timing(&chip, [pass(true), pass(false), pass(false)]);
        assert_eq!((t.tiles, t.active), (1, 30.0));
        assert!((t.cycles - (chip.fetch_cycles() + 256.0 + 30.0)).abs() < 1e-9);
    }
}
