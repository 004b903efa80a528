//! Builds the loads and instructions of one element-wise program ([`Map`]), and numbers its virtual registers.

use crate::program::{Map, MapInstr, MapLoad, SlotId};
use smallvec::SmallVec;
use std::collections::HashMap;
use systole_ir::{DType, Op, Scalar, TensorType, ValueId};

/// A register of an element-wise program before numbering. In the finished program all loads come before all
/// instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VirtualRegister {
    Load(usize),
    Instr(usize),
}

/// A load before dimensions are collapsed.
enum RawLoad {
    Array { input: usize, dtype: DType, strides: SmallVec<[usize; 4]>, offset: usize },
    Splat { value: Scalar, dtype: DType },
    Iota { dim: usize, dtype: DType },
}

/// An instruction of an element-wise program before registers are numbered.
pub struct RawInstr {
    pub op: Op,
    pub args: SmallVec<[VirtualRegister; 3]>,
    pub from: DType,
    pub to: DType,
}

/// A [`Map`] under construction, over the index space `shape`.
pub struct MapBuilder {
    pub shape: Vec<usize>,
    loads: Vec<RawLoad>,
    pub instrs: Vec<RawInstr>,
    /// The register of each value that has been computed or loaded.
    pub regs: HashMap<ValueId, VirtualRegister>,
    inputs: Vec<(SlotId, TensorType)>,
}

impl MapBuilder {
    /// Creates an empty element-wise program over the index space `shape`.
    pub fn new(shape: &[usize]) -> MapBuilder {
        MapBuilder {
            shape: shape.to_vec(),
            loads: Vec::new(),
            instrs: Vec::new(),
            regs: HashMap::new(),
            inputs: Vec::new(),
        }
    }

    fn load(&mut self, load: RawLoad) -> VirtualRegister {
        self.loads.push(load);
        VirtualRegister::Load(self.loads.len() - 1)
    }

    /// Appends a scalar, broadcast to the whole index space of an element-wise program.
    pub fn splat(&mut self, value: Scalar, dtype: DType) -> VirtualRegister {
        self.load(RawLoad::Splat { value, dtype })
    }

    /// Appends the index along dimension `dim` to an element-wise program.
    pub fn iota(&mut self, dim: usize, dtype: DType) -> VirtualRegister {
        self.load(RawLoad::Iota { dim, dtype })
    }

    /// Appends a load of an array with these strides (in elements) along the dimensions of the index space.
    pub fn array(&mut self, slot: SlotId, ty: TensorType, strides: SmallVec<[usize; 4]>) -> VirtualRegister {
        self.part(slot, ty, strides, 0)
    }

    /// Like [`array`](MapBuilder::array), starting at element `offset` of the array. Identical loads share a register.
    pub fn part(
        &mut self,
        slot: SlotId,
        ty: TensorType,
        strides: SmallVec<[usize; 4]>,
        offset: usize,
    ) -> VirtualRegister {
        let dtype = ty.dtype;
        let input = match self.inputs.iter().position(|(s, t)| *s == slot && *t == ty) {
            Some(known) => known,
            None => {
                self.inputs.push((slot, ty));
                self.inputs.len() - 1
            }
        };
        let same = |l: &RawLoad| match l {
            RawLoad::Array { input: i, strides: s, offset: o, .. } => {
                (*i, s, *o) == (input, &strides, offset)
            }
            _ => false,
        };
        match self.loads.iter().position(same) {
            Some(known) => VirtualRegister::Load(known),
            None => self.load(RawLoad::Array { input, dtype, strides, offset }),
        }
    }

    /// Appends the instruction that computes `v`.
    pub fn instr(&mut self, v: ValueId, instr: RawInstr) -> VirtualRegister {
        self.instrs.push(instr);
        let reg = VirtualRegister::Instr(self.instrs.len() - 1);
        self.regs.insert(v, reg);
        reg
    }

    /// Returns the element-wise program that stores these registers, and the inputs that its loads refer to.
    pub fn finish(self, stores: Vec<VirtualRegister>) -> (Map, Vec<(SlotId, TensorType)>) {
        let (map, inputs, _) = self.build(stores, None);
        (map, inputs)
    }

    /// Like [`finish`](MapBuilder::finish), for a reduction of `store` over the dimensions marked in `folded`. The last
    /// result marks which dimensions of the collapsed index space are reduced.
    pub fn finish_fold(
        self,
        store: VirtualRegister,
        folded: Vec<bool>,
    ) -> (Map, Vec<(SlotId, TensorType)>, Vec<bool>) {
        self.build(vec![store], Some(folded))
    }

    /// Collapses adjacent dimensions if every load has one stride for both and both are reduced or both kept. Then
    /// numbers the registers.
    fn build(
        self,
        stores: Vec<VirtualRegister>,
        folded: Option<Vec<bool>>,
    ) -> (Map, Vec<(SlotId, TensorType)>, Vec<bool>) {
        let folded = folded.unwrap_or_else(|| vec![false; self.shape.len()]);
        let kept = self.joined_dims(&folded);
        let linear = |d: usize| self.shape[d + 1..].iter().product::<usize>();
        let loads = self
            .loads
            .iter()
            .map(|l| match l {
                RawLoad::Array { input, dtype, strides, offset } => MapLoad::Array {
                    input: *input,
                    dtype: *dtype,
                    strides: kept.iter().map(|&(_, last)| strides[last]).collect(),
                    offset: *offset,
                },
                RawLoad::Splat { value, dtype } => MapLoad::Splat { value: *value, dtype: *dtype },
                RawLoad::Iota { dim, dtype } => {
                    MapLoad::Iota { inner: linear(*dim), size: self.shape[*dim], dtype: *dtype }
                }
            })
            .collect::<Vec<_>>();
        let number = |r: VirtualRegister| match r {
            VirtualRegister::Load(k) => k,
            VirtualRegister::Instr(k) => loads.len() + k,
        };
        let instrs = self.instrs.iter().map(|i| MapInstr {
            op: i.op.clone(),
            args: i.args.iter().map(|&r| number(r)).collect(),
            from: i.from,
            to: i.to,
            contraction: None,
        });
        let map = Map {
            shape: kept.iter().map(|&(size, _)| size).collect(),
            instrs: instrs.collect(),
            stores: stores.into_iter().map(number).collect(),
            loads,
        };
        let folded = kept.iter().map(|&(_, last)| folded[last]).collect();
        (map, self.inputs, folded)
    }

    /// For each collapsed dimension its size, and the innermost original dimension that it covers.
    fn joined_dims(&self, folded: &[bool]) -> Vec<(usize, usize)> {
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for d in (0..self.shape.len()).filter(|&d| self.shape[d] != 1) {
            let evenly = |p: usize| {
                self.loads.iter().all(|l| match l {
                    RawLoad::Array { strides, .. } => strides[p] == strides[d] * self.shape[d],
                    _ => true,
                })
            };
            match kept.last_mut() {
                Some((size, last)) if folded[*last] == folded[d] && evenly(*last) => {
                    *size *= self.shape[d];
                    *last = d;
                }
                _ => kept.push((self.shape[d], d)),
            }
        }
        kept
    }
}
