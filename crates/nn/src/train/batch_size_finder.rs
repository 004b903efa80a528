//! Batch-size finder: the largest batch whose training step fits into memory.
//!
//! It uses the compiler's memory estimates and runs no step.

use crate::model::Model;
use crate::setters::with_defaults;
use systole_ir::{Error, ErrorKind, Result, err};
use systole_runtime::Executable;

with_defaults! {
    /// Options of [`Model::find_batch_size`]: Lightning's names and defaults, and the memory size.
    #[derive(Clone, Debug, PartialEq)]
    pub struct BatchSizeFinder {
        /// Maximum batch size.
        pub max_val: usize = 8192,
        /// Fraction of the memory reserved for data, the system and allocations outside the plan.
        pub margin: f64 = 0.05,
        /// Memory per device in bytes. `None`: as reported by the device.
        pub memory: Option<u64> = None,
    }
}

/// Result of [`Model::find_batch_size`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchSizeResult {
    /// Samples per step: a power of two per device.
    pub batch_size: usize,
    /// Memory of a training step in bytes: weights, optimizer state, batch, intermediate values.
    pub needed: u64,
    /// Available memory in bytes.
    pub memory: u64,
    /// Whether doubling the batch would exceed [`BatchSizeFinder::max_val`]; otherwise it would exceed the memory.
    pub is_most: bool,
}

impl BatchSizeFinder {
    /// Searches for the largest batch that fits. `needs` returns the bytes that a step with a number of samples needs;
    /// `unit` devices share a batch.
    ///
    /// # Errors
    /// If not even one sample per device fits, or `needs` fails.
    pub fn search(
        &self,
        unit: usize,
        memory: u64,
        mut needs: impl FnMut(usize) -> Result<f64>,
    ) -> Result<BatchSizeResult> {
        let usable = memory as f64 * (1.0 - self.margin);
        let (small, more) = (needs(8 * unit)?, needs(32 * unit)?);
        let each = (more - small) / 24.0;
        let fitting = (usable - (small - 8.0 * each)) / each.max(1.0);
        let most = self.max_val / unit.clamp(1, self.max_val.max(1));
        let mut batch = unit << fitting.clamp(1.0, most.max(1) as f64).log2() as usize;
        let mut needed = needs(batch);
        // A large batch may need more than extrapolated from small ones.
        while batch > unit && needed.as_ref().map_or(true, |n| *n > usable) {
            batch /= 2;
            needed = needs(batch);
        }
        // Or less: kernels process large batches in blocks.
        while 2 * batch <= self.max_val && needed.is_ok() {
            match needs(2 * batch) {
                Ok(more) if more <= usable => (batch, needed) = (2 * batch, Ok(more)),
                _ => break,
            }
        }
        let needed = needed?;
        if needed > usable {
            let each = if unit > 1 { " per device" } else { "" };
            let what = format!("not even a batch of one sample{each} fits into memory");
            let why = format!(
                "the training step needs {}, available are {}",
                format_bytes(needed),
                format_bytes(memory as f64)
            );
            let e = Error::new(ErrorKind::Unsupported, what).because(why);
            return Err(e.hint("use a smaller model or input"));
        }
        Ok(BatchSizeResult {
            batch_size: batch,
            needed: needed as u64,
            memory,
            is_most: 2 * batch > self.max_val,
        })
    }
}

impl Model {
    /// Finds the largest batch whose training step fits into memory, a power of two per device, from the plan of the
    /// device's compiler. Runs nothing and does not change the model.
    ///
    /// ```
    /// use systole_ir::{DType, TensorType};
    /// use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, BatchSizeFinder, Compile, Model};
    /// let mut model = Model::sequential([dense(8), dense(1)]);
    /// model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
    /// model.build(&[TensorType::new(DType::F32, [4])])?;
    /// let found = model.find_batch_size(BatchSizeFinder { memory: Some(1 << 20), ..Default::default() })?;
    /// assert!(found.batch_size.is_power_of_two() && found.needed <= 1 << 20);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the model is not compiled or built, not even one sample fits, or the available or needed memory is unknown.
    pub fn find_batch_size(&mut self, finder: BatchSizeFinder) -> Result<BatchSizeResult> {
        let backend = self.compiled()?.backend.clone();
        let unit = backend.devices().len().max(1);
        if unit > 1 && backend.shares_cores() {
            let e = err!(Unsupported, "logical devices share one memory, but each device holds all weights");
            return Err(e.at("find_batch_size").hint("compile the model for one device"));
        }
        let memory = finder.memory.or_else(|| backend.memory_limit()).ok_or_else(|| {
            let e = err!(Unsupported, "`{}` does not report its memory size", backend.name())
                .at("find_batch_size");
            e.hint("set the memory size: BatchSizeFinder { memory: Some(bytes), .. }")
        })?;
        let plans_arena = backend.shares_cores();
        finder.search(unit, memory, |batch| needed_by_step(&*self.train_executable(batch)?, plans_arena))
    }
}

/// Returns the bytes that a step needs: arguments and intermediate values. The CPU engine plans the latter as one
/// arena.
///
/// # Errors
/// If the device's compiler does not report it.
pub fn needed_by_step(step: &dyn Executable, plans_arena: bool) -> Result<f64> {
    let held = || step.param_types().iter().map(|ty| ty.bytes() as f64).sum::<f64>();
    match (plans_arena, step.report().peak_bytes) {
        (true, _) => Ok(held() + step.report().arena_bytes as f64),
        (false, 0) => Err(err!(Unsupported, "the device's compiler does not report the memory of a step")),
        (false, bytes) => Ok(bytes as f64),
    }
}

/// Formats a number of bytes in MiB or GiB.
///
/// ```
/// use systole_nn::format_bytes;
/// assert_eq!((format_bytes(4e6), format_bytes(3e9)), ("4 MiB".into(), "2.8 GiB".into()));
/// ```
pub fn format_bytes(bytes: f64) -> String {
    match bytes / f64::from(1 << 20) {
        mib if mib < 1024.0 => format!("{mib:.0} MiB"),
        mib => format!("{:.1} GiB", mib / 1024.0),
    }
}
