//! Fused element-wise kernels: JIT-compiled loops if the JIT supports the program, else an interpreter over tiles, which
//! runs groups of instructions as machine code.
//!
//! The interpreter works on tiles of at most [`TILE`] elements of the flattened index space. A virtual register is a
//! slice of one tile's values in scratch, small enough for L1; each instruction is one vectorized loop over registers.
//! f16 and bf16 are f32 in registers. Arrays that are read at the running index are read in place; broadcast, permuted
//! and widened arrays are copied to registers. JIT code is one loop with all instructions. Its tiles may be longer: up
//! to a row, or the whole range if every load is read in place.

use crate::kernel::jit_groups::{JitGroup, TileStep, tile_steps};
use crate::kernel::{Io, Kernel, KernelContext, OutputBlock, Ptr, with_scratch};
use crate::machine::memory::AlignedMemory;
use crate::simd::jit;
use crate::simd::jit::{ACCUMULATORS, JitLoop, LoadAccess, ResultSink};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{lane_size, lanes_mut, loop_of_instruction, narrow, widen};
use smallvec::SmallVec;
use std::ops::Range;
use systole_compile::{Map, MapLoad, StridedMap, StridedStore};
use systole_ir::interp::EvalCx;
use systole_ir::op::LoweringClass;
use systole_ir::{DType, Literal, LiteralBuilder, Op, Result, Scalar, TensorType};

/// Maximum elements of an interpreter tile, and of a tile with registers.
pub(crate) const TILE: usize = 512;

/// Copies elements `start..start + n` of a vector that repeats with `period`, across one wrap-around.
///
/// # Safety
/// The vector has `period ≥ n` elements of `size` bytes; `to` has room for `n`.
#[inline(always)]
unsafe fn around(src: *const u8, [size, period]: [usize; 2], start: usize, n: usize, to: *mut u8) {
    let (at, before) = (start % period, period - start % period);
    // SAFETY: guaranteed by the caller.
    unsafe {
        std::ptr::copy_nonoverlapping(src.add(at * size), to, before * size);
        std::ptr::copy_nonoverlapping(src, to.add(before * size), (n - before) * size);
    }
}

/// Bytes between registers: two cache lines more than a tile, since powers of two would conflict in L1.
fn register_bytes(lane: usize) -> usize {
    TILE * lane + 2 * 64
}

/// Longest row in bytes that is prefetched by software. Longer runs are left to the hardware prefetcher.
const PAGE: usize = 4096;

/// Nanoseconds of one interpreter instruction for one element.
const INSTRUCTION_NS: f64 = 0.15;

/// Elements per task of the parallel loop.
const BLOCK: usize = 16 * TILE;

/// An element-wise program, ready to run tile by tile.
pub struct ElementwiseProgram {
    loads: Vec<Fetch>,
    /// Byte offset of each load: the element of its array at index 0.
    offsets: Vec<usize>,
    body: ElementwiseBody,
    /// Where each virtual register is stored: loads first, then instructions.
    homes: Vec<RegisterHome>,
    scratch_registers: usize,
    /// Number of [`Fetch::Periodic`] loads.
    periodic: usize,
    /// Bytes between registers: [`register_bytes`].
    register: usize,
    /// One filled register per splat constant, or for JIT code the tables of [`Fetch::IotaTable`].
    constants: AlignedMemory,
    pub stores: Vec<usize>,
    dims: SmallVec<[usize; 4]>,
    dtypes: Vec<DType>,
    /// Whether tiles end at row ends (of the last dimension).
    by_row: bool,
    /// Whether tiles may be longer than [`TILE`]: no load is copied to a register.
    long: bool,
}

enum ElementwiseBody {
    /// Interpreter: one loop for each instruction or group of instructions.
    Loops(Vec<InterpreterStep>),
    /// JIT: one loop for all instructions.
    Fused(JitLoop),
}

#[derive(Clone, Copy)]
enum RegisterHome {
    /// In an array; the address changes from tile to tile.
    Elsewhere,
    /// Index of a scratch register.
    Scratch(usize),
    /// Byte offset in [`ElementwiseProgram::constants`].
    Splat(usize),
    /// Index of a periodic load, which has two registers after the scratch registers.
    Repeated(usize),
}

enum Fetch {
    /// Read in place at the running index.
    Direct {
        input: usize,
        size: usize,
    },
    /// A vector of at most a tile, broadcast to all rows: read from two registers that hold `TILE + period` elements of
    /// its repetition, so that a tile can start anywhere in it.
    Periodic {
        input: usize,
        size: usize,
        period: usize,
        widen: Option<TileFn>,
    },
    /// A vector longer than a tile, broadcast to all rows: read in place unless a tile wraps around.
    Row {
        input: usize,
        size: usize,
        period: usize,
    },
    /// Read in place by tiles within one row: contiguous elements, or one element for the whole row.
    InRow {
        input: usize,
        size: usize,
        strides: SmallVec<[usize; 4]>,
    },
    /// Broadcast, permuted or widened into a register.
    Copied {
        input: usize,
        size: usize,
        strides: SmallVec<[usize; 4]>,
        linear: bool,
        widen: Option<TileFn>,
    },
    Splat,
    /// The index along a dimension, computed into a register.
    Iota {
        inner: usize,
        size: usize,
        dtype: DType,
    },
    /// The index along a dimension, read in place from a table by tiles within one row: consecutive numbers of the last
    /// dimension (`inner` is 1), or one number for the whole row.
    IotaTable {
        inner: usize,
        size: usize,
        dtype: DType,
        /// Byte offset in [`ElementwiseProgram::constants`].
        table: usize,
    },
}

/// An array load of a map.
struct ArrayLoad<'a> {
    input: usize,
    dtype: DType,
    strides: &'a SmallVec<[usize; 4]>,
    /// Whether index `i` reads element `i`.
    linear: bool,
}

impl ArrayLoad<'_> {
    /// Returns how the interpreter reads the load. `period`: length of the vector, if it is one that is broadcast to
    /// all rows.
    fn fetch(&self, period: Option<usize>, level: Level) -> Fetch {
        let ArrayLoad { input, dtype, linear, .. } = *self;
        let (size, widen) = (dtype.size(), widen(dtype, level));
        match period {
            _ if linear && widen.is_none() => Fetch::Direct { input, size },
            Some(period) if period > TILE && widen.is_none() => Fetch::Row { input, size, period },
            Some(period) if period <= TILE => Fetch::Periodic { input, size, period, widen },
            _ => Fetch::Copied { input, size, strides: self.strides.clone(), linear, widen },
        }
    }
}

/// Computes registers from others.
enum InterpreterStep {
    /// Machine code of several instructions.
    Group(JitGroup),
    /// One instruction: its loop, operands and result.
    Single { run: StepLoop, args: [usize; 3], to: usize },
}

enum StepLoop {
    Loop(TileFn),
    /// Element by element with the op's own evaluation rule, for ops without a vectorized loop.
    Scalar {
        op: Box<Op>,
        arity: usize,
        types: SmallVec<[DType; 3]>,
        to: DType,
    },
}

/// Minimum row length for which JIT tiles end at row ends, so that broadcast loads need no copy.
const LEAST_ROW: usize = 128;

/// Numbers of the longest table of [`Fetch::IotaTable`], which stays in L1.
const LARGEST_TABLE: usize = 4096;

/// Returns how JIT code reads a load, and how its address is found. `cut`: whether tiles may end at row ends.
fn fused_fetch(map: &Map, load: &MapLoad, cut: bool) -> (LoadAccess, Fetch) {
    match load {
        MapLoad::Splat { .. } => (LoadAccess::Constant, Fetch::Splat),
        MapLoad::Iota { inner, size, dtype } => {
            let (inner, size, dtype) = (*inner, *size, *dtype);
            let row = map.shape.dims().last().copied().unwrap_or(1);
            let table = Fetch::IotaTable { inner, size, dtype, table: 0 };
            match cut && size <= LARGEST_TABLE {
                true if inner == 1 && size == row => (LoadAccess::Stream, table),
                true if inner.is_multiple_of(row) => (LoadAccess::Spread, table),
                _ => (LoadAccess::Stream, Fetch::Iota { inner, size, dtype }),
            }
        }
        MapLoad::Array { input, dtype, strides, .. } => {
            let (input, size, strides) = (*input, dtype.size(), strides.clone());
            let same = strides.iter().all(|&s| s == 0);
            match (period(map, &strides), strides.last()) {
                _ if map.is_linear(load) => (LoadAccess::Stream, Fetch::Direct { input, size }),
                // One element for all indices: no strides, so no index has to be computed.
                _ if same => (LoadAccess::Spread, Fetch::InRow { input, size, strides: SmallVec::new() }),
                (_, Some(0)) if cut => (LoadAccess::Spread, Fetch::InRow { input, size, strides }),
                (_, Some(1)) if cut => (LoadAccess::Stream, Fetch::InRow { input, size, strides }),
                (Some(period), _) if period <= TILE => {
                    (LoadAccess::Stream, Fetch::Periodic { input, size, period, widen: None })
                }
                _ => (LoadAccess::Stream, Fetch::Copied { input, size, strides, linear: false, widen: None }),
            }
        }
    }
}

impl ElementwiseProgram {
    /// Compiles a map. `run`: contiguous elements that a reduction along the last dimension reads at a time; `fuse`:
    /// use the JIT if possible.
    pub fn new(map: &Map, sink: ResultSink, run: usize, level: Level, fuse: bool) -> ElementwiseProgram {
        let fused = if fuse { ElementwiseProgram::fused(map, sink, run, level) } else { None };
        fused.unwrap_or_else(|| ElementwiseProgram::interpreted(map, level, fuse))
    }

    fn fused(map: &Map, sink: ResultSink, run: usize, level: Level) -> Option<ElementwiseProgram> {
        let row = map.shape.dims().last().copied().unwrap_or(1);
        let along = matches!(sink, ResultSink::Along(_));
        // A reduction along rows starts with accumulator 0 in each tile. Tiles must equal the interpreter's, for
        // bit-identical results.
        let cut = row >= LEAST_ROW && (!along || row > TILE || run == row);
        ElementwiseProgram::fused_by(map, sink, cut, level)
    }

    /// Compiles a map with the JIT. `cut`: whether tiles may end at row ends.
    fn fused_by(map: &Map, sink: ResultSink, cut: bool, level: Level) -> Option<ElementwiseProgram> {
        let row = map.shape.dims().last().copied().unwrap_or(1);
        let along = matches!(sink, ResultSink::Along(_));
        let (access, mut loads): (Vec<LoadAccess>, Vec<Fetch>) =
            map.loads.iter().map(|load| fused_fetch(map, load, cut)).unzip();
        let body = ElementwiseBody::Fused(JitLoop::new(map, &access, sink, level)?);
        let dtypes: Vec<DType> = (0..map.loads.len() + map.instrs.len()).map(|e| map.dtype(e)).collect();
        let (mut scratch_registers, mut periodic) = (0, 0);
        let homes = loads.iter().map(|load| {
            let (count, home): (&mut usize, fn(usize) -> RegisterHome) = match load {
                Fetch::Periodic { .. } => (&mut periodic, RegisterHome::Repeated),
                Fetch::Copied { .. } | Fetch::Iota { .. } => (&mut scratch_registers, RegisterHome::Scratch),
                _ => return RegisterHome::Elsewhere,
            };
            *count += 1;
            home(*count - 1)
        });
        let homes = homes.collect();
        let in_rows = |load: &Fetch| match load {
            Fetch::InRow { strides, .. } => strides.iter().any(|&s| s != 0),
            Fetch::IotaTable { .. } => true,
            _ => false,
        };
        Some(ElementwiseProgram {
            by_row: loads.iter().any(in_rows) || along && row > TILE && map.shape.rank() > 1,
            long: scratch_registers + periodic == 0,
            offsets: map.loads.iter().map(bytes_before).collect(),
            body,
            homes,
            scratch_registers,
            periodic,
            register: register_bytes(map.loads.iter().map(stored_size).max().unwrap_or(1)),
            constants: iota_tables(&mut loads),
            loads,
            stores: map.stores.clone(),
            dims: map.shape.dims().iter().copied().collect(),
            dtypes,
        })
    }

    /// Compiles a map for the interpreter. `jit`: run groups of instructions as machine code.
    pub fn interpreted(map: &Map, level: Level, jit: bool) -> ElementwiseProgram {
        let dtypes: Vec<DType> = (0..map.loads.len() + map.instrs.len()).map(|e| map.dtype(e)).collect();
        let register = register_bytes(dtypes.iter().map(|&d| lane_size(d)).max().unwrap_or(8));
        let mut loads = Vec::new();
        let mut splats: Vec<(Scalar, DType)> = Vec::new();
        let mut homes = Vec::new();
        let mut next = 0;
        let mut periodic = 0;
        let mut fresh = || {
            next += 1;
            RegisterHome::Scratch(next - 1)
        };
        for load in &map.loads {
            let (fetch, home) = match load {
                MapLoad::Array { input, dtype, strides, .. } => {
                    let array =
                        ArrayLoad { input: *input, dtype: *dtype, strides, linear: map.is_linear(load) };
                    let fetch = array.fetch(period(map, strides), level);
                    let home = match fetch {
                        Fetch::Periodic { .. } => {
                            periodic += 1;
                            RegisterHome::Repeated(periodic - 1)
                        }
                        _ => fresh(),
                    };
                    (fetch, home)
                }
                MapLoad::Splat { value, dtype } => {
                    splats.push((*value, *dtype));
                    (Fetch::Splat, RegisterHome::Splat((splats.len() - 1) * register))
                }
                MapLoad::Iota { inner, size, dtype } => {
                    (Fetch::Iota { inner: *inner, size: *size, dtype: *dtype }, fresh())
                }
            };
            loads.push(fetch);
            homes.push(home);
        }
        let steps = tile_steps(map, level, jit);
        let code: Vec<InterpreterStep> =
            steps.into_iter().map(|step| InterpreterStep::new(step, map, level)).collect();
        let scratch_registers = assign_registers(map, &code, &mut homes, next);
        let dims: SmallVec<[usize; 4]> = map.shape.dims().iter().copied().collect();
        ElementwiseProgram {
            by_row: dims.len() > 1 && dims.last().is_some_and(|&row| row > TILE),
            long: false,
            offsets: map.loads.iter().map(bytes_before).collect(),
            loads,
            body: ElementwiseBody::Loops(code),
            homes,
            scratch_registers,
            periodic,
            register,
            constants: splat_lanes(&splats, register),
            stores: map.stores.clone(),
            dims,
            dtypes,
        }
    }

    /// Returns the scratch bytes per thread that the element-wise program needs.
    pub fn scratch(&self) -> usize {
        // One more register as the source of widening; a periodic load has two.
        (self.scratch_registers + 1 + 2 * self.periodic) * self.register
    }

    pub fn dtype(&self, register: usize) -> DType {
        self.dtypes[register]
    }

    /// Returns the cost of one element in units of [`INSTRUCTION_NS`].
    pub fn weight(&self) -> f64 {
        match &self.body {
            ElementwiseBody::Loops(code) => 1.0 + code.iter().map(InterpreterStep::weight).sum::<f64>(),
            ElementwiseBody::Fused(code) => code.nanoseconds() / INSTRUCTION_NS,
        }
    }

    /// Whether the element-wise program is JIT-compiled: [`ElementwiseProgram::run_fused`].
    pub fn is_fused(&self) -> bool {
        matches!(self.body, ElementwiseBody::Fused(_))
    }

    /// Whether the program is interpreted, and some of its instructions are machine code.
    pub fn has_groups(&self) -> bool {
        let is_group = |step: &InterpreterStep| matches!(step, InterpreterStep::Group(_));
        matches!(&self.body, ElementwiseBody::Loops(code) if code.iter().any(is_group))
    }

    /// Returns the input, if the element-wise program is only one direct load without widening.
    pub fn is_plain(&self) -> Option<usize> {
        let same = |register: usize, size: usize| lane_size(self.dtypes[register]) == size;
        match &self.loads[..] {
            [Fetch::Direct { input, size }] if self.dtypes.len() == 1 && same(0, *size) => Some(*input),
            _ => None,
        }
    }

    /// Returns the length of the tile at `start`, in a range that ends at `end`. Long rows are divided into equal
    /// tiles, so that vectors broadcast to all rows are read in place.
    pub fn tile_len(&self, start: usize, end: usize) -> usize {
        let left = end - start;
        match self.dims.last() {
            Some(&row) if self.by_row => {
                // Multiples of the accumulators, so that reductions do not depend on how a row is divided.
                let equal = row.div_ceil(row.div_ceil(TILE)).next_multiple_of(ACCUMULATORS);
                let part = if self.long { row } else { equal };
                part.min(row - start % row).min(left)
            }
            _ if self.long => left,
            _ => TILE.min(left),
        }
    }

    /// Returns the register addresses before the first tile.
    pub fn start(&self, scratch: *mut u8) -> RegisterAddresses {
        let after = self.scratch_registers + 1;
        let at = |h: &RegisterHome| match *h {
            RegisterHome::Elsewhere => std::ptr::null_mut(),
            RegisterHome::Scratch(k) => scratch.wrapping_add(k * self.register),
            RegisterHome::Splat(k) => self.constants.ptr().wrapping_add(k),
            RegisterHome::Repeated(k) => scratch.wrapping_add((after + 2 * k) * self.register),
        };
        let mut at: SmallVec<[*mut u8; 32]> = self.homes.iter().map(at).collect();
        if self.is_fused() {
            at.resize(self.loads.len() + self.stores.len(), std::ptr::null_mut());
        }
        RegisterAddresses { at, held: smallvec::smallvec![None; self.loads.len()] }
    }

    /// Computes the tile `start..start + n` with JIT code. `to(s)` is the address of store `s`.
    ///
    /// # Safety
    /// `inputs`, `regs` and `scratch` as for [`ElementwiseProgram::tile`]; the program [is
    /// fused](ElementwiseProgram::is_fused), and its level is available; `to` gives addresses of `n` elements of the
    /// results' types, or of the accumulators of a reduction.
    pub unsafe fn run_fused(
        &self,
        regs: &mut RegisterAddresses,
        inputs: &[*const u8],
        scratch: *mut u8,
        start: usize,
        n: usize,
        to: impl Fn(usize) -> *mut u8,
    ) {
        let ElementwiseBody::Fused(code) = &self.body else { return };
        // SAFETY: guaranteed by the caller. In place, code reads an element before it writes the result at the same
        // address.
        unsafe { self.fetch(regs, inputs, &[], scratch, start, n) };
        let results = &mut regs.at[self.loads.len()..];
        results.iter_mut().enumerate().for_each(|(s, at)| *at = to(s));
        // SAFETY: guaranteed by the caller; `fetch` set the addresses of all loads.
        unsafe { code.run(&regs.at, n) };
    }

    /// Returns all loads as [`StridedLoad`]; `None` if the program is not JIT code, or a load has another form.
    fn even(&self) -> Option<Vec<StridedLoad>> {
        let each = self.loads.iter().zip(&self.offsets).map(|(load, &offset)| match load {
            _ if offset != 0 => None,
            Fetch::Direct { input, size } => Some(StridedLoad::all_along(Some(*input), *size)),
            Fetch::InRow { input, strides, .. } if strides.is_empty() => {
                Some(StridedLoad::all_along(Some(*input), 0))
            }
            Fetch::InRow { input, size, strides } if self.dims.len() == 2 => {
                let across = Some([strides[0] * size, strides[1] * size]);
                Some(StridedLoad { across, ..StridedLoad::all_along(Some(*input), 0) })
            }
            Fetch::Splat => Some(StridedLoad::all_along(None, 0)),
            _ => None,
        });
        if self.is_fused() { each.collect() } else { None }
    }

    /// Interprets the tile `start..start + n`, `n ≤ TILE`: fills all registers. Inputs marked in `copies` alias an
    /// output and are copied to registers before anything is written.
    ///
    /// # Safety
    /// `inputs` are the arrays of the map's loads; `regs` comes from [`ElementwiseProgram::start`] on `scratch`, which
    /// has [`ElementwiseProgram::scratch`] bytes and belongs to this thread. Registers that the caller pointed at
    /// outputs have room for `n` elements.
    pub unsafe fn tile(
        &self,
        regs: &mut RegisterAddresses,
        inputs: &[*const u8],
        copies: &[bool],
        scratch: *mut u8,
        start: usize,
        n: usize,
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.fetch(regs, inputs, copies, scratch, start, n) };
        let (ElementwiseBody::Loops(code), regs) = (&self.body, &regs.at) else {
            systole_ir::bug!("machine code leaves no values in registers")
        };
        for step in code {
            let (run, args, to) = match step {
                InterpreterStep::Group(group) => {
                    let at: SmallVec<[*mut u8; 32]> =
                        group.reads.iter().chain(&group.writes).map(|&r| regs[r]).collect();
                    // SAFETY: registers hold `n` elements of the types that the code was generated for, and
                    // `assign_registers` never gives a step an operand's register as destination.
                    unsafe { group.code.run(&at, n) };
                    continue;
                }
                InterpreterStep::Single { run, args, to } => (run, args, to),
            };
            let (dst, [a, b, c]) = (regs[*to], args.map(|r| regs[r].cast_const()));
            match run {
                // SAFETY: as for a group.
                StepLoop::Loop(f) => unsafe { f(dst, a, b, c, n) },
                StepLoop::Scalar { op, arity, types, to } => {
                    // SAFETY: as for the other registers.
                    unsafe { scalar_loop(op, *arity, types, *to, dst, [a, b, c], n) }
                }
            }
        }
    }

    /// Returns the address of a periodic load's elements from `start` on. Fills its two registers on first use.
    ///
    /// # Safety
    /// `from` is the array of load `k`; scratch has the program's registers.
    #[inline(always)]
    unsafe fn repeated(
        &self,
        k: usize,
        from: *const u8,
        scratch: *mut u8,
        home: usize,
        held: &mut Option<(usize, usize)>,
        start: usize,
    ) -> *mut u8 {
        let Fetch::Periodic { size, period, widen, .. } = &self.loads[k] else { return scratch };
        let base = scratch.wrapping_add((self.scratch_registers + 1 + 2 * home) * self.register);
        let lane = if widen.is_some() { lane_size(self.dtypes[k]) } else { *size };
        if held.is_none() {
            // SAFETY: the input has `period` elements, and two registers hold `TILE + period` elements.
            unsafe { repeat(base, from, *size, lane, *period, *widen) };
            *held = Some((0, TILE));
        }
        base.wrapping_add(start % period * lane)
    }

    /// Sets the address of each load's elements `start..start + n`, and copies those that are not read in place.
    unsafe fn fetch(
        &self,
        regs: &mut RegisterAddresses,
        inputs: &[*const u8],
        copies: &[bool],
        scratch: *mut u8,
        start: usize,
        n: usize,
    ) {
        let spare = scratch.wrapping_add(self.scratch_registers * self.register);
        let RegisterAddresses { at: regs, held } = regs;
        for (k, load) in self.loads.iter().enumerate() {
            let source = |input: usize| inputs[input].wrapping_add(self.offsets[k]);
            match load {
                Fetch::Direct { input, size } => {
                    let from = source(*input).wrapping_add(start * size);
                    if !copies.get(*input).copied().unwrap_or(false) {
                        regs[k] = from.cast_mut();
                    } else if let RegisterHome::Scratch(home) = self.homes[k] {
                        regs[k] = scratch.wrapping_add(home * self.register);
                        // SAFETY: the array has `n` elements from here on, the register `TILE ≥ n`.
                        unsafe { std::ptr::copy_nonoverlapping(from, regs[k], n * size) };
                    }
                }
                Fetch::Periodic { input, .. } => {
                    let RegisterHome::Repeated(home) = self.homes[k] else { continue };
                    // SAFETY: `source` is the load's array; its two registers belong to no other value.
                    regs[k] = unsafe { self.repeated(k, source(*input), scratch, home, &mut held[k], start) };
                }
                Fetch::Row { input, size, period } if start % period + n <= *period => {
                    regs[k] = source(*input).wrapping_add(start % period * size).cast_mut();
                }
                Fetch::Row { input, size, period } => {
                    let RegisterHome::Scratch(home) = self.homes[k] else { continue };
                    regs[k] = scratch.wrapping_add(home * self.register);
                    // SAFETY: the vector has `period ≥ n` elements.
                    unsafe { around(source(*input), [*size, *period], start, n, regs[k]) };
                }
                Fetch::InRow { input, size, strides } => {
                    let at = element(&self.dims, strides, start) * size;
                    regs[k] = source(*input).wrapping_add(at).cast_mut();
                }
                Fetch::Copied { strides, .. } if self.holds(held[k], strides, start, n) => {}
                Fetch::Copied { input, strides, widen, .. } => {
                    held[k] = self.row(strides, start, n).map(|row| (row, n));
                    let raw = if widen.is_some() { spare } else { regs[k] };
                    // SAFETY: `source` is the load's array; `raw` and its register belong to no other value.
                    unsafe { self.copied(load, source(*input), raw, regs[k], start, n) };
                }
                Fetch::Splat => {}
                Fetch::IotaTable { .. } => regs[k] = self.iota_address(load, start),
                // SAFETY: the register has `TILE ≥ n` elements.
                Fetch::Iota { inner, size, dtype } => unsafe {
                    iota(regs[k], *dtype, *inner, *size, start, n)
                },
            }
        }
    }

    /// Returns the address in the table of a [`Fetch::IotaTable`] of the number for element `start`.
    fn iota_address(&self, load: &Fetch, start: usize) -> *mut u8 {
        let Fetch::IotaTable { inner, size, dtype, table } = load else { return std::ptr::null_mut() };
        self.constants.ptr().wrapping_add(table + start / inner % size * dtype.size())
    }

    /// Gathers elements `start..start + n` of a [`Fetch::Copied`] into `raw`, and widens them into `to` if they are
    /// narrow.
    ///
    /// # Safety
    /// `from` is the load's array; `raw` and `to` have room for `n` elements.
    #[inline(always)]
    unsafe fn copied(
        &self,
        load: &Fetch,
        from: *const u8,
        raw: *mut u8,
        to: *mut u8,
        start: usize,
        n: usize,
    ) {
        let Fetch::Copied { size, strides, linear, widen, .. } = load else { return };
        let mut lanes = raw.cast_const();
        // SAFETY: strides address elements inside the array for every index of the map's shape.
        unsafe {
            if *linear {
                lanes = from.wrapping_add(start * size);
            } else {
                self.gather(raw, from, *size, strides, start, n);
            }
            if let Some(widen) = widen {
                widen(to, lanes, lanes, lanes, n);
            }
        }
    }

    /// Returns the row that contains `start..start + n`, if a load has one value per row and the range is in one row.
    fn row(&self, strides: &[usize], start: usize, n: usize) -> Option<usize> {
        match (strides.last(), self.dims.last()) {
            (Some(0), Some(&inner)) if start / inner == (start + n - 1) / inner => Some(start / inner),
            _ => None,
        }
    }

    /// Whether a register already holds a tile's values. `held`: the row whose value it holds, and the number of
    /// elements.
    fn holds(&self, held: Option<(usize, usize)>, strides: &[usize], start: usize, n: usize) -> bool {
        held.is_some_and(|(row, lanes)| n <= lanes && self.row(strides, start, n) == Some(row))
    }

    /// Copies `n` elements of a broadcast or permuted array, in runs along the last dimension.
    unsafe fn gather(
        &self,
        dst: *mut u8,
        src: *const u8,
        size: usize,
        strides: &[usize],
        start: usize,
        n: usize,
    ) {
        let (dims, strides) = merged(&self.dims, strides);
        let Some(last) = dims.len().checked_sub(1) else {
            // SAFETY: one element each.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, size) };
            return;
        };
        let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, dims.len());
        let mut rest = start;
        for d in (0..dims.len()).rev() {
            index[d] = rest % dims[d];
            rest /= dims[d];
        }
        let is_repeated = last > 0 && strides[last - 1] == 0;
        let mut done = 0;
        while done < n {
            let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
            let run = (dims[last] - index[last]).min(n - done);
            let (to, from) = (dst.wrapping_add(done * size), src.wrapping_add(at * size));
            let is_spread = last > 0 && strides[last] == 0 && run == dims[last] && run <= MAX_SPREAD;
            let times = match is_spread || is_repeated && run == dims[last] {
                true => ((n - done) / run).min(dims[last - 1] - index[last - 1]),
                false => 1,
            };
            // SAFETY: the run stays within the last dimension, `done + times · run ≤ n`, and the dimension before the last
            // has `times` more elements.
            unsafe {
                if is_spread {
                    spread_each(to, from, size, strides[last - 1], run, times);
                } else {
                    copy_run(to, from, size, strides[last], run);
                    repeat_in_place(to, run * size, times * run * size);
                }
            }
            done += times * run;
            index[last] += run;
            if times > 1 {
                index[last - 1] += times - 1;
            }
            let mut d = last;
            while index[d] == dims[d] && d > 0 {
                index[d] = 0;
                d -= 1;
                index[d] += 1;
            }
        }
    }
}

/// Dimensions and strides of an array, in which neighboring dimensions that are read like one are one.
fn merged(dims: &[usize], strides: &[usize]) -> (SmallVec<[usize; 6]>, SmallVec<[usize; 6]>) {
    let (mut sizes, mut steps) = (SmallVec::<[usize; 6]>::new(), SmallVec::<[usize; 6]>::new());
    for (&size, &stride) in dims.iter().zip(strides) {
        match (sizes.last_mut(), steps.last_mut()) {
            (Some(outer), Some(step)) if *step == size * stride => (*outer, *step) = (*outer * size, stride),
            _ => {
                sizes.push(size);
                steps.push(stride);
            }
        }
    }
    (sizes, steps)
}

/// Largest number of copies of [`spread_each`].
const MAX_SPREAD: usize = 16;

/// Writes each of `count` elements at a stride of `stride` elements `run` times, `run ≤` [`MAX_SPREAD`].
///
/// # Safety
/// The elements exist, and `to` has room for `count · run` elements.
unsafe fn spread_each(to: *mut u8, from: *const u8, size: usize, stride: usize, run: usize, count: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match size {
            1 => spread_words::<u8>(to, from, stride, run, count),
            2 => spread_words::<u16>(to, from, stride, run, count),
            4 => spread_words::<u32>(to, from, stride, run, count),
            _ => spread_words::<u64>(to, from, stride, run, count),
        }
    }
}

/// [`spread_each`] for elements of type `T`; common runs are compiled separately.
unsafe fn spread_words<T: Copy>(to: *mut u8, from: *const u8, stride: usize, run: usize, count: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match run {
            2 => spread_by::<T>(to, from, stride, 2, count),
            3 => spread_by::<T>(to, from, stride, 3, count),
            4 => spread_by::<T>(to, from, stride, 4, count),
            8 => spread_by::<T>(to, from, stride, 8, count),
            _ => spread_by::<T>(to, from, stride, run, count),
        }
    }
}

#[inline(always)]
unsafe fn spread_by<T: Copy>(to: *mut u8, from: *const u8, stride: usize, run: usize, count: usize) {
    // SAFETY: guaranteed by the caller.
    let to = unsafe { lanes_mut::<T>(to, count * run) };
    for (i, part) in to.chunks_exact_mut(run).enumerate() {
        // SAFETY: element `i · stride` exists, guaranteed by the caller.
        part.fill(unsafe { *from.cast::<T>().add(i * stride) });
    }
}

/// Repeats the first `done` bytes until there are `end`.
///
/// # Safety
/// `dst` has `end` bytes, of which the first `done > 0` are initialized.
unsafe fn repeat_in_place(dst: *mut u8, mut done: usize, end: usize) {
    while done < end {
        let more = done.min(end - done);
        // SAFETY: guaranteed by the caller; the two parts do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(dst.cast_const(), dst.add(done), more) };
        done += more;
    }
}

/// Addresses of all registers, kept from tile to tile. For JIT code: of loads, then of stores.
pub struct RegisterAddresses {
    pub at: SmallVec<[*mut u8; 32]>,
    /// For loads that stay the same for some tiles: the row whose value the register holds, and the number of elements.
    held: SmallVec<[Option<(usize, usize)>; 16]>,
}

/// Returns the size of a load's stored element in bytes.
fn stored_size(load: &MapLoad) -> usize {
    match load {
        MapLoad::Array { dtype, .. } | MapLoad::Splat { dtype, .. } | MapLoad::Iota { dtype, .. } => {
            dtype.size()
        }
    }
}

/// Returns the element offset, in an array with these strides, of flat index `i` of a program with these dimensions.
fn element(dims: &[usize], strides: &[usize], i: usize) -> usize {
    let (mut rest, mut at) = (i, 0);
    for (&size, &stride) in dims.iter().zip(strides).rev() {
        // The outer indices are all 0.
        if rest == 0 {
            break;
        }
        at += rest % size * stride;
        rest /= size;
    }
    at
}

/// Returns the byte offset of a load in its array.
fn bytes_before(load: &MapLoad) -> usize {
    match load {
        MapLoad::Array { dtype, offset, .. } => dtype.size() * offset,
        _ => 0,
    }
}

/// Returns the length of the last dimension, if the load is a vector along it that is broadcast along all others.
fn period(map: &Map, strides: &[usize]) -> Option<usize> {
    let (last, others) = strides.split_last()?;
    let period = map.shape[others.len()];
    (*last == 1 && others.iter().all(|&s| s == 0)).then_some(period)
}

/// Fills `TILE + period` elements with repetitions of a vector of `period` elements.
unsafe fn repeat(
    dst: *mut u8,
    src: *const u8,
    size: usize,
    lane: usize,
    period: usize,
    widen: Option<TileFn>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match widen {
            Some(widen) => widen(dst, src, src, src, period),
            None => std::ptr::copy_nonoverlapping(src, dst, period * size),
        }
        repeat_in_place(dst, period * lane, (TILE + period) * lane);
    }
}

impl InterpreterStep {
    fn new(step: TileStep, map: &Map, level: Level) -> InterpreterStep {
        let k = match step {
            TileStep::Group(group) => return InterpreterStep::Group(group),
            TileStep::Single(k) => k,
        };
        let instr = &map.instrs[k];
        let mut args = [0; 3];
        let arity = instr.args.len().min(3);
        args[..arity].copy_from_slice(&instr.args[..arity]);
        let run = match loop_of_instruction(instr, level) {
            Some(f) => StepLoop::Loop(f),
            None => StepLoop::Scalar {
                op: Box::new(instr.op.clone()),
                arity,
                types: instr.args.iter().map(|&e| map.dtype(e)).collect(),
                to: instr.to,
            },
        };
        InterpreterStep::Single { run, args, to: map.loads.len() + k }
    }

    /// Returns the registers that it reads, each once, and those that it writes.
    fn registers(&self, map: &Map) -> (SmallVec<[usize; 3]>, SmallVec<[usize; 3]>) {
        match self {
            InterpreterStep::Group(group) => {
                (group.reads.iter().copied().collect(), group.writes.iter().copied().collect())
            }
            InterpreterStep::Single { to, .. } => {
                let mut args = map.instrs[to - map.loads.len()].args.clone();
                args.sort_unstable();
                args.dedup();
                (args, smallvec::smallvec![*to])
            }
        }
    }

    /// Returns the cost of one element in units of [`INSTRUCTION_NS`].
    fn weight(&self) -> f64 {
        match self {
            InterpreterStep::Group(group) => group.code.nanoseconds() / INSTRUCTION_NS,
            InterpreterStep::Single { .. } => 1.0,
        }
    }
}

/// Linear-scan register allocation: a step's registers are free after their last reader. Loads keep theirs, and values
/// inside a group need none. Returns the number of scratch registers.
fn assign_registers(
    map: &Map,
    code: &[InterpreterStep],
    homes: &mut Vec<RegisterHome>,
    loads: usize,
) -> usize {
    let steps: Vec<_> = code.iter().map(|step| step.registers(map)).collect();
    let mut last_use = vec![None; map.loads.len() + map.instrs.len()];
    for (k, (reads, _)) in steps.iter().enumerate() {
        reads.iter().for_each(|&r| last_use[r] = Some(k));
    }
    map.stores.iter().for_each(|&s| last_use[s] = Some(usize::MAX));
    homes.resize(last_use.len(), RegisterHome::Elsewhere);
    let mut free: Vec<usize> = Vec::new();
    let mut total = loads;
    for (k, (reads, writes)) in steps.iter().enumerate() {
        for &r in writes {
            let home = free.pop().unwrap_or_else(|| {
                total += 1;
                total - 1
            });
            homes[r] = RegisterHome::Scratch(home);
        }
        let ends = reads.iter().filter(|&&r| last_use[r] == Some(k) && r >= map.loads.len());
        for &r in ends.chain(writes.iter().filter(|&&r| last_use[r].is_none())) {
            if let RegisterHome::Scratch(home) = homes[r] {
                free.push(home);
            }
        }
    }
    total
}

/// Sets the offsets of the tables of [`Fetch::IotaTable`] and returns their memory.
fn iota_tables(loads: &mut [Fetch]) -> AlignedMemory {
    let mut bytes = 0;
    for load in &mut *loads {
        if let Fetch::IotaTable { size, dtype, table, .. } = load {
            *table = bytes;
            bytes += (*size * dtype.size()).next_multiple_of(64);
        }
    }
    let memory = constant_memory(bytes);
    for load in loads {
        if let Fetch::IotaTable { size, dtype, table, .. } = *load {
            // SAFETY: the table has `size` elements.
            unsafe { iota(memory.ptr().add(table), dtype, 1, size, 0, size) };
        }
    }
    memory
}

fn constant_memory(bytes: usize) -> AlignedMemory {
    match AlignedMemory::new(bytes) {
        Ok(memory) => memory,
        Err(e) => systole_ir::bug!("{e}"),
    }
}

fn splat_lanes(splats: &[(Scalar, DType)], register: usize) -> AlignedMemory {
    let memory = constant_memory(splats.len() * register);
    for (k, (value, dtype)) in splats.iter().enumerate() {
        // SAFETY: each splat owns one register of `TILE` elements.
        unsafe {
            let dst = memory.ptr().add(k * register);
            (0..TILE).for_each(|i| write_lane(dst, *dtype, i, *value));
        }
    }
    memory
}

/// Stores a value, already of type `dtype`, as element `i` of a register.
unsafe fn write_lane(dst: *mut u8, dtype: DType, i: usize, value: Scalar) {
    // SAFETY: the caller guarantees that the register has element `i`.
    unsafe {
        match dtype {
            DType::F16 | DType::BF16 => *dst.cast::<f32>().add(i) = value.as_f64() as f32,
            _ => {
                let size = dtype.size();
                let bytes = value.to_bits(dtype).to_le_bytes();
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.add(i * size), size);
            }
        }
    }
}

/// Returns element `i` of a register.
unsafe fn read_lane(src: *const u8, dtype: DType, i: usize) -> Scalar {
    // SAFETY: the caller guarantees that the register has element `i`.
    unsafe {
        match dtype {
            DType::F16 | DType::BF16 => Scalar::Float(*src.cast::<f32>().add(i) as f64),
            _ => {
                let mut raw = [0u8; 8];
                let size = dtype.size();
                std::ptr::copy_nonoverlapping(src.add(i * size), raw.as_mut_ptr(), size);
                Scalar::from_bits(dtype, u64::from_le_bytes(raw))
            }
        }
    }
}

unsafe fn scalar_loop(
    op: &Op,
    arity: usize,
    types: &[DType],
    to: DType,
    dst: *mut u8,
    args: [*const u8; 3],
    n: usize,
) {
    // SAFETY: the caller guarantees that the registers hold `n` elements of these types.
    let arg = |k: usize, i: usize| unsafe { read_lane(args[k], types[k], i) };
    for i in 0..n {
        let value = match op {
            Op::Unary(op) => op.apply(types[0], arg(0, i)),
            Op::Binary(op) => op.apply(to, arg(0, i), arg(1, i)),
            Op::Compare(op) => Scalar::Bool(op.apply(arg(0, i), arg(1, i))),
            Op::Convert(op) => arg(0, i).convert_to(op.to),
            Op::ReducePrecision(op) => Scalar::Float(op.apply(arg(0, i).as_f64())).round_to(to),
            _ => break,
        };
        // SAFETY: as for the other registers.
        unsafe { write_lane(dst, to, i, value) };
    }
    if !matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Convert(_) | Op::ReducePrecision(_))
    {
        let read = |k: usize| {
            let mut b = LiteralBuilder::new(TensorType::new(types[k], [n]));
            (0..n).for_each(|i| b.set(i, arg(k, i)));
            b.finish()
        };
        let values: Vec<Literal> = (0..arity).map(read).collect();
        let refs: Vec<&Literal> = values.iter().collect();
        debug_assert_eq!(op.rule().lower(), LoweringClass::Map);
        let outs = smallvec::smallvec![TensorType::new(to, [n])];
        match op.rule().eval(&mut EvalCx::default(), &refs, &outs) {
            // SAFETY: as for the other registers.
            Ok(y) => (0..n).for_each(|i| unsafe { write_lane(dst, to, i, y[0].get(i)) }),
            Err(e) => systole_ir::bug!("cannot evaluate {} on one tile: {e}", op.name()),
        }
    }
}

/// Writes the index along one dimension for elements `start..start + n`, in runs of equal or of consecutive values.
///
/// # Safety
/// `dst` has room for `n` elements of `dtype`.
pub(crate) unsafe fn iota(dst: *mut u8, dtype: DType, inner: usize, size: usize, start: usize, n: usize) {
    let mut done = 0;
    while done < n {
        let (at, within) = ((start + done) / inner % size, (start + done) % inner);
        let (run, step) = if inner == 1 { (size - at, 1) } else { (inner - within, 0) };
        let run = run.min(n - done);
        // SAFETY: the caller guarantees that `dst` has room for `n` elements.
        unsafe {
            match dtype {
                DType::I32 | DType::U32 => {
                    let lanes = lanes_mut::<u32>(dst.add(4 * done), run);
                    lanes.iter_mut().enumerate().for_each(|(i, x)| *x = (at + i * step) as u32);
                }
                DType::F32 if size <= 1 << 24 => {
                    let lanes = lanes_mut::<f32>(dst.add(4 * done), run);
                    lanes.iter_mut().enumerate().for_each(|(i, x)| *x = (at + i * step) as u32 as f32);
                }
                _ => (0..run).for_each(|i| {
                    write_lane(dst, dtype, done + i, Scalar::Int((at + i * step) as i64).convert_to(dtype));
                }),
            }
        }
        done += run;
    }
}

/// Copies `run` elements at a stride of `stride` elements to contiguous ones.
#[inline]
unsafe fn copy_run(to: *mut u8, from: *const u8, size: usize, stride: usize, run: usize) {
    // SAFETY: the caller guarantees that source and destination have `run` elements.
    unsafe {
        match (size, stride) {
            (_, 1) => std::ptr::copy_nonoverlapping(from, to, run * size),
            (1, s) => strided::<u8>(to, from, s, run),
            (2, s) => strided::<u16>(to, from, s, run),
            (4, s) => strided::<u32>(to, from, s, run),
            (_, s) => strided::<u64>(to, from, s, run),
        }
    }
}

#[inline]
unsafe fn strided<T: Copy>(to: *mut u8, from: *const u8, stride: usize, run: usize) {
    // SAFETY: guaranteed by the caller.
    let to = unsafe { lanes_mut::<T>(to, run) };
    if stride == 0 {
        // SAFETY: one element.
        to.fill(unsafe { *from.cast::<T>() });
        return;
    }
    for (i, t) in to.iter_mut().enumerate() {
        // SAFETY: element `i · stride` exists, guaranteed by the caller.
        *t = unsafe { *from.cast::<T>().add(i * stride) };
    }
}

/// Writes `n` elements of a register to an array, rounded by `narrow` if it has a narrower type.
///
/// # Safety
/// `dst` has room for `n` elements of `dtype`, `src` holds `n` register elements; they do not overlap.
pub unsafe fn store(dst: *mut u8, src: *const u8, dtype: DType, narrow: Option<TileFn>, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match narrow {
            Some(f) => f(dst, src, src, src, n),
            None => std::ptr::copy_nonoverlapping(src, dst, n * lane_size(dtype)),
        }
    }
}

/// A load of JIT code whose address advances by a constant from row to row: from an input or a constant.
struct StridedLoad {
    input: Option<usize>,
    /// Bytes between elements of a load at the running index; 0 if one element is used for all.
    size: usize,
    /// Strides in bytes, from row to row and within a row, if it is broadcast along one of them.
    across: Option<[usize; 2]>,
}

impl StridedLoad {
    fn all_along(input: Option<usize>, size: usize) -> StridedLoad {
        StridedLoad { input, size, across: None }
    }
}

/// Kernel of a fused element-wise step.
pub struct MapKernel {
    program: ElementwiseProgram,
    elements: usize,
    outputs: Vec<MapOutput>,
    /// Loads of [`Kernel::run_block`]; `None` if the kernel cannot be an epilogue.
    even: Option<Vec<StridedLoad>>,
    /// Cached [`MapKernel::row_steps`].
    steps: Option<Vec<usize>>,
    /// Cached [`MapKernel::rows_to_fetch`].
    ahead: Vec<(usize, usize)>,
}

struct MapOutput {
    register: usize,
    dtype: DType,
    narrow: Option<TileFn>,
    /// Whether the instruction's loop writes directly to the array: no rounding, and no earlier store of it.
    direct: bool,
    /// Index of the step's output that it belongs to.
    array: usize,
    /// Offset and strides in that output; `None` if it is the whole array.
    part: Option<StridedStore>,
}

impl MapOutput {
    /// Returns the address of flat index `i`, for a program with these dimensions.
    fn address(&self, outputs: &[*mut u8], dims: &[usize], i: usize) -> *mut u8 {
        let element = self.part.as_ref().map_or(i, |part| part.offset + element(dims, &part.strides, i));
        outputs[self.array].wrapping_add(element * self.dtype.size())
    }
}

impl MapKernel {
    pub fn new(map: &Map, level: Level) -> MapKernel {
        MapKernel::with(map, level, jit::is_wanted())
    }

    /// Compiles a map. `fuse`: use the JIT if possible.
    pub(crate) fn with(map: &Map, level: Level, fuse: bool) -> MapKernel {
        MapKernel::whole(map, ElementwiseProgram::new(map, ResultSink::Arrays, 0, level, fuse), level)
    }

    /// Compiles a map as the epilogue of a product whose result has any number of columns; `None` if the JIT does not
    /// support it.
    pub(crate) fn epilogue(map: &Map, columns: usize, level: Level) -> Option<MapKernel> {
        let wanted = if jit::is_wanted() { Some(()) } else { None };
        let program =
            wanted.and_then(|()| ElementwiseProgram::fused_by(map, ResultSink::Arrays, true, level))?;
        let kernel = MapKernel::whole(map, program, level);
        kernel.takes_blocks(columns).then_some(kernel)
    }

    /// Compiles a map whose stores are strided parts of outputs.
    pub fn of_parts(parts: &StridedMap, level: Level, fuse: bool) -> MapKernel {
        let program = ElementwiseProgram::new(&parts.map, ResultSink::Arrays, 0, level, fuse);
        let mut kernel = MapKernel::whole(&parts.map, program, level);
        for (output, part) in kernel.outputs.iter_mut().zip(&parts.stores) {
            output.array = part.output;
            output.part = (!parts.is_whole(part)).then(|| part.clone());
        }
        kernel.program.by_row = true;
        kernel.even = None;
        kernel.steps = kernel.row_steps();
        kernel.ahead = kernel.rows_to_fetch();
        kernel
    }

    fn whole(map: &Map, program: ElementwiseProgram, level: Level) -> MapKernel {
        let outputs = map.stores.iter().enumerate().map(|(k, &register)| {
            let dtype = program.dtype(register);
            let narrow = narrow(dtype, level);
            let first = map.stores[..k].iter().all(|&s| s != register);
            let direct = narrow.is_none() && register >= map.loads.len() && first;
            MapOutput { register, dtype, narrow, direct, array: k, part: None }
        });
        let (outputs, even) = (outputs.collect(), program.even());
        let mut kernel = MapKernel {
            outputs,
            even,
            steps: None,
            ahead: Vec::new(),
            program,
            elements: map.shape.elements(),
        };
        kernel.steps = kernel.row_steps();
        kernel
    }
}

impl MapKernel {
    /// Whether it is JIT-compiled.
    pub(crate) fn is_fused(&self) -> bool {
        self.program.is_fused()
    }

    /// Whether some of its instructions are JIT-compiled, and others interpreted.
    pub(crate) fn has_groups(&self) -> bool {
        self.program.has_groups()
    }

    /// Returns the number of elements of the index space.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Returns the cost of one element, see [`ElementwiseProgram::weight`].
    pub fn weight(&self) -> f64 {
        self.program.weight()
    }

    /// Computes the elements of `range` on this thread.
    ///
    /// # Safety
    /// The module's contract, for these elements.
    pub unsafe fn range(&self, inputs: &[*const u8], outputs: &[*mut u8], range: Range<usize>) {
        if self.program.is_fused() {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.fused_range(inputs, outputs, range) };
        }
        let written = |i: &*const u8| outputs.iter().any(|&o| std::ptr::eq(o, *i));
        let copies: SmallVec<[bool; 8]> = inputs.iter().map(written).collect();
        with_scratch(self.program.scratch(), |scratch| {
            let mut regs = self.program.start(scratch);
            let mut start = range.start;
            while start < range.end {
                let len = self.program.tile_len(start, range.end);
                for o in &self.outputs {
                    if o.direct {
                        regs.at[o.register] = o.address(outputs, &self.program.dims, start);
                    }
                }
                // SAFETY: guaranteed by the caller; this thread owns the scratch; inputs that alias an output are
                // copied before a tile of it is written.
                unsafe {
                    self.program.tile(&mut regs, inputs, &copies, scratch, start, len);
                    for o in self.outputs.iter().filter(|o| !o.direct) {
                        let dst = o.address(outputs, &self.program.dims, start);
                        store(dst, regs.at[o.register], o.dtype, o.narrow, len);
                    }
                }
                start += len;
            }
        });
    }

    /// Computes [`MapKernel::range`] with JIT code.
    unsafe fn fused_range(&self, inputs: &[*const u8], outputs: &[*mut u8], range: Range<usize>) {
        if let Some(steps) = &self.steps
            && range.start.is_multiple_of(self.program.dims[1])
            && range.end.is_multiple_of(self.program.dims[1])
        {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.fused_rows(steps, inputs, outputs, range) };
        }
        with_scratch(self.program.scratch(), |scratch| {
            let mut regs = self.program.start(scratch);
            let mut start = range.start;
            while start < range.end {
                let len = self.program.tile_len(start, range.end);
                let to = |s: usize| self.outputs[s].address(outputs, &self.program.dims, start);
                // SAFETY: guaranteed by the caller; this thread owns the scratch.
                unsafe { self.program.run_fused(&mut regs, inputs, scratch, start, len, to) };
                start += len;
            }
        });
    }
}

impl MapKernel {
    /// Returns the bytes between rows of each load, then of each store; `None` unless the program is two-dimensional
    /// JIT code that works row by row and copies no load.
    fn row_steps(&self) -> Option<Vec<usize>> {
        let &[rows, row] = &self.program.dims[..] else { return None };
        let is_even = |load: &Fetch| match load {
            Fetch::IotaTable { inner, size, .. } => *inner == 1 || (*inner, *size) == (row, rows),
            _ => true,
        };
        if !self.program.loads.iter().all(is_even) {
            return None;
        }
        let load = |load: &Fetch| match load {
            Fetch::Direct { size, .. } => row * size,
            Fetch::InRow { size, strides, .. } => strides.first().map_or(0, |s| s * size),
            Fetch::IotaTable { inner, dtype, .. } if *inner == row => dtype.size(),
            _ => 0,
        };
        let store = |o: &MapOutput| o.part.as_ref().map_or(row, |part| part.strides[0]) * o.dtype.size();
        let all = self.program.loads.iter().map(load).chain(self.outputs.iter().map(store));
        (self.program.is_fused() && self.program.long && self.program.by_row).then(|| all.collect())
    }

    /// Returns the loads to prefetch one row ahead, with the bytes of a row. A program of strided parts has more short
    /// runs than the hardware prefetcher can follow.
    fn rows_to_fetch(&self) -> Vec<(usize, usize)> {
        let row = self.program.dims.last().copied().unwrap_or(1);
        let bytes = |(k, load): (usize, &Fetch)| match load {
            Fetch::Direct { size, .. } => Some((k, row * size)),
            Fetch::InRow { size, strides, .. } if strides.last() == Some(&1) => Some((k, row * size)),
            _ => None,
        };
        let all = self.program.loads.iter().enumerate().filter_map(bytes);
        all.filter(|&(_, bytes)| bytes <= PAGE).collect()
    }

    /// Computes whole rows with JIT code. Before a row is computed, the next row of the loads in `self.ahead` is
    /// prefetched.
    unsafe fn fused_rows(
        &self,
        steps: &[usize],
        inputs: &[*const u8],
        outputs: &[*mut u8],
        range: Range<usize>,
    ) {
        let ElementwiseBody::Fused(code) = &self.program.body else { return };
        let row = self.program.dims[1];
        let mut regs = self.program.start(std::ptr::null_mut());
        // SAFETY: `row_steps` holds for programs that copy no load, so that `fetch` uses no scratch.
        unsafe { self.program.fetch(&mut regs, inputs, &[], std::ptr::null_mut(), range.start, row) };
        let loads = self.program.loads.len();
        for (at, o) in regs.at[loads..].iter_mut().zip(&self.outputs) {
            *at = o.address(outputs, &self.program.dims, range.start);
        }
        let rows = range.len() / row;
        for r in 0..rows {
            if r + 1 < rows {
                for &(k, bytes) in &self.ahead {
                    let next = regs.at[k].wrapping_add(steps[k]);
                    (0..bytes)
                        .step_by(64)
                        .for_each(|line| crate::simd::prefetch::fetch(next.wrapping_add(line)));
                }
            }
            // SAFETY: guaranteed by the caller.
            unsafe { code.run(&regs.at, row) };
            regs.at.iter_mut().zip(steps).for_each(|(at, &step)| *at = at.wrapping_add(step));
        }
    }
}

impl Kernel for MapKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let n = self.elements;
        if n <= BLOCK {
            // SAFETY: guaranteed by the caller.
            unsafe { self.range(io.inputs, io.outputs, 0..n) };
            return Ok(());
        }
        let inputs: SmallVec<[Ptr; 8]> = io.inputs.iter().map(|&p| Ptr::of(p)).collect();
        let outputs: SmallVec<[Ptr; 4]> = io.outputs.iter().map(|&p| Ptr(p)).collect();
        let body = |block: usize| {
            let inputs: SmallVec<[*const u8; 8]> = inputs.iter().map(|p| p.at(0).cast_const()).collect();
            let outputs: SmallVec<[*mut u8; 4]> = outputs.iter().map(|p| p.at(0)).collect();
            // SAFETY: blocks are disjoint ranges.
            unsafe { self.range(&inputs, &outputs, block * BLOCK..((block + 1) * BLOCK).min(n)) };
        };
        let work = n as f64 * INSTRUCTION_NS * self.program.weight();
        cx.team.run_with(n.div_ceil(BLOCK), work, cx.flush, &body);
        Ok(())
    }

    fn takes_blocks(&self, columns: usize) -> bool {
        let fits = |e: &StridedLoad| e.across.is_none() || self.program.dims[1] == columns;
        self.even.as_ref().is_some_and(|loads| loads.iter().all(fits))
    }

    unsafe fn run_block(&self, inputs: &[*const u8], outputs: &[*mut u8], block: &OutputBlock) {
        let (Some(loads), ElementwiseBody::Fused(code)) = (&self.even, &self.program.body) else { return };
        let load = |&StridedLoad { input, size, across }: &StridedLoad| match (input, across) {
            (Some(i), _) if i + 1 == inputs.len() => (inputs[i].cast_mut(), block.stride * size),
            (Some(i), Some([row, column])) => {
                let at = block.first / block.row * row + block.first % block.row * column;
                (inputs[i].wrapping_add(at).cast_mut(), row)
            }
            (Some(i), None) => (inputs[i].wrapping_add(block.first * size).cast_mut(), block.row * size),
            (None, _) => (std::ptr::null_mut(), 0),
        };
        let store = |(o, &out): (&MapOutput, &*mut u8)| {
            let size = o.dtype.size();
            (out.wrapping_add(block.first * size), block.row * size)
        };
        let (mut at, steps): (SmallVec<[*mut u8; 32]>, SmallVec<[usize; 32]>) =
            loads.iter().map(load).chain(self.outputs.iter().zip(outputs).map(store)).unzip();
        // Whole rows that follow each other are one row, unless an input has another row for each of them.
        let dense = block.columns == block.row && block.stride == block.row;
        let is_one = dense && loads.iter().all(|e| e.across.is_none());
        let (rows, columns) =
            if is_one { (1, block.rows * block.columns) } else { (block.rows, block.columns) };
        for _ in 0..rows {
            // SAFETY: guaranteed by the caller.
            unsafe { code.run(&at, columns) };
            at.iter_mut().zip(&steps).for_each(|(at, &step)| *at = at.wrapping_add(step));
        }
    }
}
