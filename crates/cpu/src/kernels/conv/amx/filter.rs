//! Packs a convolution's filter for AMX tile registers, as the right operand (B).
//!
//! The order is: phases, panels of two tiles of columns, and in each panel the K chunks of one run of taps after
//! another.

use crate::kernel::{KernelContext, Ptr};
use crate::kernels::conv::staging::{FEWEST_TASKS, group};
use crate::select::SelectResult;
use crate::simd::amx;
use crate::simd::amx::strided::COLUMNS;
use crate::simd::amx::{LANES, LINE};
use crate::simd::level::Level;
use crate::simd::pack::{PackFn, PanelArgs};
use smallvec::SmallVec;
use std::ops::Range;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType};

/// Elements of a K chunk of AMX tiles: 16 words of two bf16.
pub const CHUNK: usize = 2 * LANES;
/// Bytes of the packed filter that one task reads for each of its row tiles: they stay in L2.
const KERNEL: usize = 768 << 10;

/// Strides of a filter, in elements.
pub struct FilterStrides {
    pub spatial: SmallVec<[usize; 3]>,
    pub channel: usize,
    feature: usize,
}

impl FilterStrides {
    /// Returns the strides of a convolution's filter.
    pub fn new(c: &Convolution, k: &TensorType) -> FilterStrides {
        let (d, own) = (&c.dims, k.shape.strides());
        FilterStrides {
            spatial: d.kernel_spatial.iter().map(|&s| own[s]).collect(),
            channel: own[d.kernel_input_feature],
            feature: own[d.kernel_output_feature],
        }
    }
}

/// Filter taps of a phase of a dilated convolution.
pub struct PhaseTaps {
    /// Start of each run in the filter, in elements.
    at: Vec<usize>,
    /// Elements of a run.
    length: usize,
    /// Number of K chunks that hold a run.
    pub chunks: usize,
    /// Start of each run in a packed panel, in bytes, for panels of one and of two column tiles.
    pub packed_runs: [Vec<usize>; 2],
    /// Byte offset of the packed phase.
    packed: usize,
}

impl PhaseTaps {
    /// Creates the taps of a phase from the start of each run and the elements of a run.
    pub fn new(at: Vec<usize>, length: usize) -> PhaseTaps {
        let chunks = length.div_ceil(CHUNK);
        let packed_runs =
            [1, 2].map(|tiles| (0..at.len()).map(|r| r * chunks * tiles * LANES * LINE).collect());
        PhaseTaps { at, length, chunks, packed_runs, packed: 0 }
    }

    /// Number of runs of adjacent filter taps.
    pub fn runs(&self) -> usize {
        self.at.len()
    }

    /// Bytes of a packed panel of `columns` columns.
    fn panel(&self, columns: usize) -> usize {
        self.at.len() * self.chunks * tiles(columns) * LANES * LINE
    }
}

/// Number of column tiles in a panel of `columns` columns.
pub fn tiles(columns: usize) -> usize {
    if columns > LANES { 2 } else { 1 }
}

/// A convolution filter and its packed layout for AMX.
pub struct AmxFilter {
    pack: PackFn<f32>,
    /// Taps of each phase.
    pub taps: Vec<PhaseTaps>,
    /// Columns (features) of each panel.
    pub panels: Vec<Range<usize>>,
    layout: FilterStrides,
    /// Bytes of the packed filter.
    pub bytes: usize,
}

impl AmxFilter {
    /// Plans the packed layout of a filter.
    pub fn new(
        mut taps: Vec<PhaseTaps>,
        layout: FilterStrides,
        features: usize,
        vectors: Level,
    ) -> SelectResult<AmxFilter> {
        let panels: Vec<Range<usize>> =
            (0..features).step_by(COLUMNS).map(|at| at..features.min(at + COLUMNS)).collect();
        let mut bytes = 0;
        for of in &mut taps {
            of.packed = bytes;
            bytes += panels.iter().map(|p| of.panel(p.len())).sum::<usize>();
        }
        let [_, pack] =
            amx::pack::packs(DType::BF16, vectors).ok_or("there is no AMX packing routine for bf16")?;
        Ok(AmxFilter { pack, taps, panels, layout, bytes })
    }

    /// Divides the panels into groups that one task computes, for each of `strips` strips.
    pub fn groups(&self, strips: usize) -> Vec<Range<usize>> {
        let panels = self.panels.len();
        let together = (KERNEL / (self.bytes / panels).max(1)).max(1);
        group(panels, panels.div_ceil(together).max(FEWEST_TASKS.div_ceil(strips)))
    }

    /// Byte offset of a panel in the packed filter.
    pub fn at(&self, taps: &PhaseTaps, panel: usize) -> usize {
        taps.packed + panel * taps.panel(COLUMNS)
    }

    /// Packs the convolution filter for AMX.
    ///
    /// # Safety
    /// `kernel` has the layout that this filter was created for; `packed` has room for `bytes` bytes.
    pub unsafe fn pack(&self, cx: &KernelContext<'_>, kernel: Ptr, packed: Ptr) {
        let body = |task: usize| {
            let (taps, panel) = (&self.taps[task / self.panels.len()], task % self.panels.len());
            let columns = &self.panels[panel];
            let fill = tiles(columns.len()) * LANES;
            for (tap, run) in taps.at.iter().zip(&taps.packed_runs[tiles(columns.len()) - 1]) {
                let args = PanelArgs {
                    src: kernel.at((tap + columns.start * self.layout.feature) * 2).cast_const(),
                    lane: self.layout.feature * 2,
                    step: self.layout.channel * 2,
                    lanes: columns.len(),
                    fill,
                    k: taps.chunks * LANES,
                    products: taps.length,
                    dst: packed.at(self.at(taps, panel) + run).cast::<f32>(),
                    stride: fill,
                };
                // SAFETY: a run of the filter; panels are disjoint ranges of the packed filter.
                unsafe { (self.pack)(&[args]) };
            }
        };
        let tasks = self.taps.len() * self.panels.len();
        cx.team.run_with(tasks, self.bytes as f64 * 0.1, cx.flush, &body);
    }
}
