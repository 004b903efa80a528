//! JIT assembler: encodes AVX-512 (EVEX), AVX2 and mask (VEX) instructions, and integer ones for loop control.
//!
//! Encodings: Intel's Software Developer's Manual, volume 2. This module only produces bytes; nothing is executed here.
#![forbid(unsafe_code)]

use crate::simd::jit::opcodes::Opcode;

/// General-purpose register, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gpr(pub u8);
pub const RAX: Gpr = Gpr(0);
pub const RCX: Gpr = Gpr(1);
pub const RDX: Gpr = Gpr(2);
pub const RBX: Gpr = Gpr(3);
pub const RBP: Gpr = Gpr(5);
pub const RSI: Gpr = Gpr(6);
pub const RDI: Gpr = Gpr(7);
pub const R8: Gpr = Gpr(8);
pub const R9: Gpr = Gpr(9);
pub const R10: Gpr = Gpr(10);
pub const R11: Gpr = Gpr(11);
pub const R12: Gpr = Gpr(12);
pub const R13: Gpr = Gpr(13);
pub const R14: Gpr = Gpr(14);
pub const R15: Gpr = Gpr(15);

/// Vector register: one of 32 (AVX-512) or 16 (AVX2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VectorReg(pub u8);

/// Mask register. As a write mask, `k0` means all lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mask(pub u8);

/// Write mask of a vector instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMask {
    All,
    /// Merging: other lanes keep the destination's value.
    Merge(Mask),
    /// Zeroing: other lanes become zero.
    Zero(Mask),
}

/// Memory address `base + index · scale + offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAddress {
    pub base: Gpr,
    /// Index register and scale (a power of two).
    pub index: Option<(Gpr, u8)>,
    pub offset: i32,
}

/// Operand in the ModRM r/m field: register, memory address, or a constant in the constant pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rm {
    Reg(VectorReg),
    Memory(MemoryAddress),
    /// A constant broadcast to every lane, from the constant pool after the code.
    Splat(u32),
    /// A constant of one lane, for instructions that read one lane.
    Single(u32),
    /// A constant of eight lanes.
    Lanes([u32; 8]),
}

/// Condition of a jump, after an unsigned comparison.
#[derive(Clone, Copy)]
pub enum JumpCondition {
    Below = 2,
    NotBelow = 3,
    Equal = 4,
    NotEqual = 5,
    Above = 7,
}

/// A forward jump whose target is not yet known.
pub struct Jump(usize);

/// Code under construction, and the constant pool that follows it.
pub struct Assembler {
    code: Vec<u8>,
    /// Stored once each if instructions broadcast them (`copies` = 1), else once per lane.
    constants: Vec<LaneConstant>,
    copies: usize,
    /// Per use of a constant: position of its displacement, end of the instruction, index of the constant.
    references: Vec<(usize, usize, usize)>,
}

/// The lanes of a constant: all equal, or eight.
type LaneConstant = [u32; 8];

impl Assembler {
    /// Creates an assembler that broadcasts constants from memory (AVX-512).
    pub fn filling() -> Assembler {
        Assembler { code: Vec::new(), constants: Vec::new(), copies: 1, references: Vec::new() }
    }

    /// Creates an assembler that reads all eight lanes of a constant from memory (AVX2).
    pub fn reading() -> Assembler {
        Assembler { copies: 8, ..Assembler::filling() }
    }

    /// Emits an AVX-512 instruction. `reg`: the destination (a vector, a mask, or an opcode extension). `first`: the
    /// first of two sources, 0 if there is one.
    pub fn vector(&mut self, op: Opcode, reg: u8, first: u8, rm: Rm, lanes: WriteMask, imm: Option<u8>) {
        let Opcode(prefix, map, code) = op;
        // Register bits are inverted in the prefix: 1 means a register below 8, or below 16.
        let low = |n: u8, bit: u8| (n >> bit & 1) ^ 1;
        let (x, b) = match rm {
            Rm::Reg(VectorReg(n)) => (low(n, 4), low(n, 3)),
            Rm::Memory(at) => (at.index.map_or(1, |(i, _)| low(i.0, 3)), low(at.base.0, 3)),
            Rm::Splat(_) | Rm::Single(_) | Rm::Lanes(_) => (1, 1),
        };
        let (mask, zero) = match lanes {
            WriteMask::All => (0, 0),
            WriteMask::Merge(m) => (m.0, 0),
            WriteMask::Zero(m) => (m.0, 1),
        };
        let splat = u8::from(matches!(rm, Rm::Splat(_)));
        const WHOLE: u8 = 2;
        self.code.extend([
            0x62,
            low(reg, 3) << 7 | x << 6 | b << 5 | low(reg, 4) << 4 | map,
            (!first & 15) << 3 | 1 << 2 | prefix,
            zero << 7 | WHOLE << 5 | splat << 4 | low(first, 4) << 3 | mask,
            code,
        ]);
        self.operand(reg & 7, rm, imm.map_or(0, |_| 1));
        self.code.extend(imm);
    }

    /// Emits an AVX2 instruction on 256-bit registers; operands as for [`Assembler::vector`].
    pub fn ymm(&mut self, op: Opcode, reg: u8, first: u8, rm: Rm, imm: Option<u8>) {
        self.vex_vector(1, op, reg, first, rm, imm);
    }

    /// Like [`Assembler::ymm`], on 128-bit registers.
    pub fn xmm(&mut self, op: Opcode, reg: u8, first: u8, rm: Rm, imm: Option<u8>) {
        self.vex_vector(0, op, reg, first, rm, imm);
    }

    fn vex_vector(
        &mut self,
        long: u8,
        Opcode(prefix, map, code): Opcode,
        reg: u8,
        first: u8,
        rm: Rm,
        imm: Option<u8>,
    ) {
        let low = |n: u8| (n >> 3 & 1) ^ 1;
        let (x, b) = match rm {
            Rm::Reg(VectorReg(n)) => (1, low(n)),
            Rm::Memory(at) => (at.index.map_or(1, |(i, _)| low(i.0)), low(at.base.0)),
            Rm::Splat(_) | Rm::Single(_) | Rm::Lanes(_) => (1, 1),
        };
        self.code.extend([
            0xc4,
            low(reg) << 7 | x << 6 | b << 5 | map,
            (!first & 15) << 3 | long << 2 | prefix,
            code,
        ]);
        self.operand(reg & 7, rm, imm.map_or(0, |_| 1));
        self.code.extend(imm);
    }

    /// Emits the ModRM byte, SIB and displacement. `after`: bytes of the instruction that follow (for RIP-relative
    /// addresses).
    fn operand(&mut self, reg: u8, rm: Rm, after: usize) {
        match rm {
            Rm::Reg(VectorReg(n)) => self.code.push(0xc0 | reg << 3 | n & 7),
            Rm::Splat(bits) | Rm::Single(bits) => self.constant(reg, [bits; 8], after),
            Rm::Lanes(lanes) => self.constant(reg, lanes, after),
            Rm::Memory(MemoryAddress { base, index, offset }) => {
                // The 8-bit displacement is not used: EVEX scales it by a factor that depends on the instruction.
                let long = offset != 0 || base.0 & 7 == 5;
                let mode = if long { 0x80 } else { 0 };
                match index {
                    Some((i, scale)) => {
                        self.code.push(mode | reg << 3 | 4);
                        self.code.push((scale.trailing_zeros() as u8) << 6 | (i.0 & 7) << 3 | base.0 & 7);
                    }
                    None => self.code.push(mode | reg << 3 | base.0 & 7),
                }
                if long {
                    self.code.extend(offset.to_le_bytes());
                }
            }
        }
    }

    fn constant(&mut self, reg: u8, lanes: LaneConstant, after: usize) {
        self.code.push(reg << 3 | 5);
        let known = self.constants.iter().position(|&c| c == lanes);
        let constant = known.unwrap_or_else(|| {
            self.constants.push(lanes);
            self.constants.len() - 1
        });
        let at = self.code.len();
        self.references.push((at, at + 4 + after, constant));
        self.code.extend([0; 4]);
    }

    /// Emits a register-to-register VEX instruction without mandatory prefix: mask instructions (`map` 1) and `bzhi`
    /// (`map` 2).
    fn vex(&mut self, map: u8, long: u8, code: u8, reg: u8, first: u8, rm: u8) {
        let low = |n: u8| (n >> 3 & 1) ^ 1;
        self.code.extend([
            0xc4,
            low(reg) << 7 | 1 << 6 | low(rm) << 5 | map,
            (!first & 15) << 3 | long << 2,
            code,
            0xc0 | (reg & 7) << 3 | rm & 7,
        ]);
    }

    /// Emits `to = a op b` on masks; `op` is one of [`crate::simd::jit::opcodes::KAND`] and the others there.
    pub fn masks(&mut self, op: u8, to: Mask, a: Mask, b: Mask) {
        self.vex(1, 1, op, to.0, a.0, b.0);
    }

    /// Emits `to = !a` on masks.
    pub fn mask_not(&mut self, to: Mask, a: Mask) {
        self.vex(1, 0, 0x44, to.0, 0, a.0);
    }

    /// Emits `to` = the low 16 bits of a general-purpose register.
    pub fn mask_of(&mut self, to: Mask, from: Gpr) {
        self.vex(1, 0, 0x92, to.0, 0, from.0);
    }

    /// Emits `to` = the low `count` bits of `from` (`bzhi`); all bits for a count of 32 or more.
    pub fn low_bits(&mut self, to: Gpr, from: Gpr, count: Gpr) {
        self.vex(2, 0, 0xf5, to.0, count.0, from.0);
    }

    fn wide(&mut self, reg: u8, rm: u8) {
        self.code.push(0x48 | (reg >> 3 & 1) << 2 | rm >> 3 & 1);
    }

    /// Emits a load of the pointer at `base + offset`.
    pub fn load_address(&mut self, to: Gpr, base: Gpr, offset: i32) {
        self.wide(to.0, base.0);
        self.code.push(0x8b);
        self.code.push(0x80 | (to.0 & 7) << 3 | base.0 & 7);
        self.code.extend(offset.to_le_bytes());
    }

    pub fn zero(&mut self, r: Gpr) {
        self.wide(r.0, r.0);
        self.code.extend([0x31, 0xc0 | (r.0 & 7) << 3 | r.0 & 7]);
    }

    pub fn add(&mut self, r: Gpr, n: i32) {
        self.wide(0, r.0);
        self.code.extend([0x81, 0xc0 | r.0 & 7]);
        self.code.extend(n.to_le_bytes());
    }

    /// Emits `r -= n`; sets the flags for a jump.
    pub fn subtract(&mut self, r: Gpr, n: i32) {
        self.wide(0, r.0);
        self.code.extend([0x81, 0xe8 | r.0 & 7]);
        self.code.extend(n.to_le_bytes());
    }

    /// Emits code that sets the low 32 bits.
    pub fn ones(&mut self, r: Gpr) {
        if r.0 >= 8 {
            self.code.push(0x41);
        }
        self.code.push(0xb8 | r.0 & 7);
        self.code.extend([0xff; 4]);
    }

    /// Pads with `nop` to a multiple of 32 bytes: alignment of a loop's first instruction.
    pub fn align(&mut self) {
        self.code.resize(self.code.len().next_multiple_of(32), 0x90);
    }

    /// Returns the code offset of the next instruction.
    pub fn here(&self) -> usize {
        self.code.len()
    }

    pub fn jump_back(&mut self, when: JumpCondition, to: usize) {
        let jump = self.jump(when);
        self.patch(jump.0, to);
    }

    pub fn jump(&mut self, when: JumpCondition) -> Jump {
        self.code.extend([0x0f, 0x80 | when as u8]);
        let at = self.code.len();
        self.code.extend([0; 4]);
        Jump(at)
    }

    /// Makes the next instruction the target of `jump`.
    pub fn land(&mut self, jump: Jump) {
        self.patch(jump.0, self.code.len());
    }

    fn patch(&mut self, at: usize, to: usize) {
        let distance = to as i64 - (at as i64 + 4);
        self.code[at..at + 4].copy_from_slice(&(distance as i32).to_le_bytes());
    }

    /// Emits `to = from` on pointers.
    pub fn move_pointer(&mut self, to: Gpr, from: Gpr) {
        self.wide(from.0, to.0);
        self.code.extend([0x89, 0xc0 | (from.0 & 7) << 3 | to.0 & 7]);
    }

    /// Emits a load of 64 constant bits.
    pub fn load_immediate(&mut self, to: Gpr, bits: u64) {
        // The 32-bit form sets the upper half to 0.
        let short = u32::try_from(bits).ok();
        self.code.push(0x40 | u8::from(short.is_none()) << 3 | to.0 >> 3 & 1);
        self.code.push(0xb8 | to.0 & 7);
        match short {
            Some(bits) => self.code.extend(bits.to_le_bytes()),
            None => self.code.extend(bits.to_le_bytes()),
        }
    }

    /// Emits an instruction without vector operands: `prefix`, then opcode bytes, with a register in ModRM's `reg`
    /// field and `base + offset` in memory. The base is none of `rsp` and `r12`.
    pub fn memory_form(&mut self, opcode: &[u8], reg: Gpr, base: Gpr, offset: i32) {
        self.wide(reg.0, base.0);
        self.code.extend(opcode);
        self.code.push(0x80 | (reg.0 & 7) << 3 | base.0 & 7);
        self.code.extend(offset.to_le_bytes());
    }

    /// Emits a store of the lower 32 bits of a register.
    pub fn narrow_store(&mut self, from: Gpr, base: Gpr, offset: i32) {
        self.code.push(0x40 | (from.0 >> 3 & 1) << 2 | base.0 >> 3 & 1);
        self.code.extend([0x89, 0x80 | (from.0 & 7) << 3 | base.0 & 7]);
        self.code.extend(offset.to_le_bytes());
    }

    /// Emits a jump unless a condition code holds.
    pub fn jump_if_not(&mut self, condition: u8) -> Jump {
        self.code.extend([0x0f, 0x80 | condition ^ 1]);
        let at = self.code.len();
        self.code.extend([0; 4]);
        Jump(at)
    }

    /// Emits an instruction on two general-purpose registers of 64 bits.
    pub fn register_form(&mut self, opcode: &[u8], reg: Gpr, rm: Gpr) {
        self.wide(reg.0, rm.0);
        self.code.extend(opcode);
        self.code.push(0xc0 | (reg.0 & 7) << 3 | rm.0 & 7);
    }

    /// Emits an instruction on two general-purpose registers, of 64 bits (`wide`) or 32.
    pub fn integer_form(&mut self, wide: bool, opcode: &[u8], reg: Gpr, rm: Gpr) {
        self.code.push(0x40 | u8::from(wide) << 3 | (reg.0 >> 3 & 1) << 2 | rm.0 >> 3 & 1);
        self.code.extend(opcode);
        self.code.push(0xc0 | (reg.0 & 7) << 3 | rm.0 & 7);
    }

    /// Emits instruction bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.code.extend(bytes);
    }

    /// Emits an unconditional jump.
    pub fn jump_always(&mut self) -> Jump {
        self.code.push(0xe9);
        let at = self.code.len();
        self.code.extend([0; 4]);
        Jump(at)
    }

    /// Makes code offset `to` the target of `jump`.
    pub fn land_at(&mut self, jump: Jump, to: usize) {
        self.patch(jump.0, to);
    }

    /// Emits the end of the function: `vzeroupper; ret`.
    pub fn leave(&mut self) {
        self.code.extend([0xc5, 0xf8, 0x77, 0xc3]);
    }

    /// Returns the machine code, followed by its constant pool.
    pub fn finish(mut self) -> Vec<u8> {
        let bytes = 4 * self.copies;
        self.code.resize(self.code.len().next_multiple_of(bytes), 0xcc);
        let constants = self.code.len();
        for (at, end, k) in std::mem::take(&mut self.references) {
            let distance = (constants + bytes * k) as i64 - end as i64;
            self.code[at..at + 4].copy_from_slice(&(distance as i32).to_le_bytes());
        }
        let lanes = self.constants.iter().flat_map(|c| &c[..self.copies]);
        self.code.extend(lanes.flat_map(|lane| lane.to_le_bytes()));
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::jit::opcodes;

    /// Returns the bytes of one instruction, with any displacement to its constant resolved.
    fn bytes(f: impl Fn(&mut Assembler)) -> String {
        let mut a = Assembler::filling();
        f(&mut a);
        let end = a.here();
        a.finish()[..end].iter().map(|b| format!("{b:02x}")).collect()
    }

    fn vector(op: Opcode, reg: u8, first: u8, rm: Rm, lanes: WriteMask, imm: Option<u8>) -> String {
        bytes(|a| a.vector(op, reg, first, rm, lanes, imm))
    }

    fn at(base: Gpr, index: Gpr, scale: u8, offset: i32) -> Rm {
        Rm::Memory(MemoryAddress { base, index: Some((index, scale)), offset })
    }

    /// Expected bytes are from GNU `as` (with `{disp32}` and `{vex3}` if it would choose a shorter form).
    #[test]
    fn vector_instructions_are_those_of_an_assembler() {
        use opcodes::*;
        let z = |n| Rm::Reg(VectorReg(n));
        let all = WriteMask::All;
        let (merge, zero) = (|k| WriteMask::Merge(Mask(k)), |k| WriteMask::Zero(Mask(k)));
        let cases = [
            // vaddps zmm1, zmm2, zmm3
            (vector(ADDPS, 1, 2, z(3), all, None), "62f16c4858cb"),
            // vaddps zmm1{k3}, zmm2, zmm3
            (vector(ADDPS, 1, 2, z(3), merge(3), None), "62f16c4b58cb"),
            // vfmadd231ps zmm31, zmm17, zmm8
            (vector(FMADD231PS, 31, 17, z(8), all, None), "62427540b8f8"),
            // vmulps zmm9, zmm30, [rip+2]{1to16}
            (vector(MULPS, 9, 30, Rm::Splat(7), all, None), "62710c50590d02000000"),
            // vmovups zmm16{k1}{z}, [rdx+r11*4]
            (vector(MOVUPS_LOAD, 16, 0, at(RDX, R11, 4, 0), zero(1), None), "62a17cc910049a"),
            // vmovups zmm2, [r8+r11*1]
            (vector(MOVUPS_LOAD, 2, 0, at(R8, R11, 1, 0), all, None), "62917c48101418"),
            // vmovups [r9+r11*4+64]{k1}, zmm25
            (vector(MOVUPS_STORE, 25, 0, at(R9, R11, 4, 64), merge(1), None), "62017c49118c9940000000"),
            // vpmovzxwd zmm3, [rcx+r11*2]
            (vector(PMOVZXWD, 3, 0, at(RCX, R11, 2, 0), all, None), "62b27d48331c59"),
            // vpmovdw [r8+r10*2]{k1}, zmm4
            (vector(PMOVDW, 4, 0, at(R8, R10, 2, 0), merge(1), None), "62927e49332450"),
            // vcvtps2ph [rcx+r11*2], zmm20, 0
            (vector(CVTPS2PH, 20, 0, at(RCX, R11, 2, 0), all, Some(0)), "62a37d481d245900"),
            // vcvtph2ps zmm21, ymm22
            (vector(CVTPH2PS, 21, 0, z(22), all, None), "62a27d4813ee"),
            // vcmpps k5, zmm18, zmm7, 0x1e
            (vector(CMPPS, 5, 18, z(7), all, Some(0x1e)), "62f16c40c2ef1e"),
            // vpternlogd zmm6, zmm23, [rip+1]{1to16}, 0xd8
            (vector(PTERNLOGD, 6, 23, Rm::Splat(7), all, Some(0xd8)), "62f34550253501000000d8"),
            // vpsrld zmm12, zmm26, 16
            (vector(SHIFTS, SHIFT_RIGHT, 12, z(26), all, Some(16)), "62911d4872d210"),
            // vbroadcastss zmm13{k3}{z}, [rip+2]
            (vector(BROADCASTSS, 13, 0, Rm::Single(7), zero(3), None), "62727dcb182d02000000"),
            // vpbroadcastw zmm14, [rax]
            (
                vector(
                    PBROADCASTW,
                    14,
                    0,
                    Rm::Memory(MemoryAddress { base: RAX, index: None, offset: 0 }),
                    all,
                    None,
                ),
                "62727d487930",
            ),
            // vblendmps zmm15{k2}, zmm16, zmm1
            (vector(BLENDMPS, 15, 16, z(1), merge(2), None), "62727d4265f9"),
            // vcvtneps2bf16 ymm17, zmm3
            (vector(CVTNEPS2BF16, 17, 0, z(3), all, None), "62e27e4872cb"),
            // vpmovzxwd zmm18, ymm17
            (vector(PMOVZXWD, 18, 0, z(17), all, None), "62a27d4833d1"),
            // vscalefps zmm10, zmm11, zmm12
            (vector(SCALEFPS, 10, 11, z(12), all, None), "625225482cd4"),
            // vcvtudq2ps zmm0, zmm31
            (vector(CVTUDQ2PS, 0, 0, z(31), all, None), "62917f487ac7"),
            // vcvttps2udq zmm1, zmm2
            (vector(CVTTPS2UDQ, 1, 0, z(2), all, None), "62f17c4878ca"),
            // vpcmpud k2, zmm1, [rip+1]{1to16}, 1
            (vector(PCMPUD, 2, 1, Rm::Splat(7), all, Some(1)), "62f375581e150100000001"),
            // vptestmd k5, zmm19, zmm19
            (vector(PTESTMD, 5, 19, z(19), all, None), "62b2654027eb"),
            // vrndscaleps zmm2, zmm24, 9
            (vector(RNDSCALEPS, 2, 0, z(24), all, Some(9)), "62937d4808d009"),
            // vsqrtps zmm2, zmm24
            (vector(SQRTPS, 2, 0, z(24), all, None), "62917c4851d0"),
            // vpmovdb [r8+r11], zmm4
            (vector(PMOVDB, 4, 0, at(R8, R11, 1, 0), all, None), "62927e48312418"),
            // vpmovzxbd zmm3, [rcx+r11]
            (vector(PMOVZXBD, 3, 0, at(RCX, R11, 1, 0), all, None), "62b27d48311c19"),
            // vmovaps zmm7{k4}{z}, zmm27
            (vector(MOVAPS, 7, 0, z(27), zero(4), None), "62917ccc28fb"),
        ];
        for (made, expected) in cases {
            assert_eq!(made, expected);
        }
    }

    /// As above; constants start at byte 32.
    #[test]
    fn instructions_of_avx2_are_those_of_an_assembler() {
        use opcodes::*;
        let of = |f: &dyn Fn(&mut Assembler)| {
            let mut a = Assembler::reading();
            f(&mut a);
            let end = a.here();
            a.finish()[..end].iter().map(|b| format!("{b:02x}")).collect::<String>()
        };
        let y = |n| Rm::Reg(VectorReg(n));
        let whole = |op, reg, first, rm, imm| of(&|a| a.ymm(op, reg, first, rm, imm));
        let half = |op, reg, first, rm, imm| of(&|a| a.xmm(op, reg, first, rm, imm));
        let word = Rm::Memory(MemoryAddress { base: RAX, index: None, offset: 0 });
        let cases = [
            // vaddps ymm1, ymm2, ymm3
            (whole(ADDPS, 1, 2, y(3), None), "c4e16c58cb"),
            // vfmadd231ps ymm15, ymm9, ymm8
            (whole(FMADD231PS, 15, 9, y(8), None), "c44235b8f8"),
            // vmulps ymm9, ymm14, [rip+23]
            (whole(MULPS, 9, 14, Rm::Splat(7), None), "c4610c590d17000000"),
            // vmovups ymm10, [rdx+r11*4]
            (whole(MOVUPS_LOAD, 10, 0, at(RDX, R11, 4, 0), None), "c4217c10149a"),
            // vmovups [r9+r11*4+64], ymm5
            (whole(MOVUPS_STORE, 5, 0, at(R9, R11, 4, 64), None), "c4817c11ac9940000000"),
            // vpmovzxwd ymm3, [rcx+r11*2]
            (whole(PMOVZXWD, 3, 0, at(RCX, R11, 2, 0), None), "c4a27d331c59"),
            // vcvtps2ph [rcx+r11*2], ymm12, 0
            (whole(CVTPS2PH, 12, 0, at(RCX, R11, 2, 0), Some(0)), "c4237d1d245900"),
            // vcvtph2ps ymm11, xmm12
            (whole(CVTPH2PS, 11, 0, y(12), None), "c4427d13dc"),
            // vcmpps ymm5, ymm8, ymm7, 0x1e
            (whole(CMPPS, 5, 8, y(7), Some(0x1e)), "c4e13cc2ef1e"),
            // vpsrld ymm12, ymm6, 16
            (whole(SHIFTS, SHIFT_RIGHT, 12, y(6), Some(16)), "c4e11d72d610"),
            // vpsrad ymm2, ymm10, 1
            (whole(SHIFTS, SHIFT_RIGHT_SIGNED, 2, y(10), Some(1)), "c4c16d72e201"),
            // vpbroadcastw ymm14, [rax]
            (whole(PBROADCASTW, 14, 0, word, None), "c4627d7930"),
            // vblendvps ymm7, ymm10, ymm9, ymm4
            (whole(BLENDVPS, 7, 10, y(9), Some(4 << 4)), "c4c32d4af940"),
            // vblendvps ymm7, ymm10, [rip+22], ymm14
            (whole(BLENDVPS, 7, 10, Rm::Splat(7), Some(14 << 4)), "c4e32d4a3d16000000e0"),
            // vpshufb ymm15, ymm4, [rip+23]
            (whole(PSHUFB, 15, 4, Rm::Lanes([1; 8]), None), "c4625d003d17000000"),
            // vextracti128 xmm15, ymm15, 1
            (whole(EXTRACTI128, 15, 0, y(15), Some(1)), "c4437d39ff01"),
            // vmovd [r8+r11], xmm15
            (half(MOVD_STORE, 15, 0, at(R8, R11, 1, 0), None), "c401797e3c18"),
            // vmovlps [r8+r10*2], xmm15
            (half(MOVLPS_STORE, 15, 0, at(R8, R10, 2, 0), None), "c40178133c50"),
            // vpcmpgtd ymm3, ymm13, [rip+23]
            (whole(PCMPGTD, 3, 13, Rm::Splat(7), None), "c4e115661d17000000"),
            // vpcmpeqd ymm3, ymm13, ymm1
            (whole(PCMPEQD, 3, 13, y(1), None), "c4e11576d9"),
            // vpandn ymm1, ymm2, ymm3
            (whole(PANDN, 1, 2, y(3), None), "c4e16ddfcb"),
            // vmaskmovps ymm4, ymm9, [rcx+r11*4]
            (whole(MASKMOVPS_LOAD, 4, 9, at(RCX, R11, 4, 0), None), "c4a2352c2499"),
            // vmaskmovps [rcx+r11*4], ymm9, ymm14
            (whole(MASKMOVPS_STORE, 14, 9, at(RCX, R11, 4, 0), None), "c422352e3499"),
            // vmovd xmm13, esi
            (half(MOVD_LOAD, 13, 0, y(RSI.0), None), "c461796eee"),
            // vpbroadcastd ymm13, xmm13
            (whole(PBROADCASTD, 13, 0, y(13), None), "c4427d58ed"),
            // vroundps ymm2, ymm14, 9
            (whole(RNDSCALEPS, 2, 0, y(14), Some(9)), "c4c37d08d609"),
        ];
        for (made, expected) in cases {
            assert_eq!(made, expected);
        }
    }

    #[test]
    fn other_instructions_are_those_of_an_assembler() {
        let cases = [
            // kandw k2, k3, k4
            (bytes(|a| a.masks(opcodes::KAND, Mask(2), Mask(3), Mask(4))), "c4e16441d4"),
            // kandnw k7, k6, k5
            (bytes(|a| a.masks(opcodes::KANDN, Mask(7), Mask(6), Mask(5))), "c4e14c42fd"),
            // kxnorw k3, k3, k3
            (bytes(|a| a.masks(opcodes::KXNOR, Mask(3), Mask(3), Mask(3))), "c4e16446db"),
            // knotw k6, k2
            (bytes(|a| a.mask_not(Mask(6), Mask(2))), "c4e17844f2"),
            // kmovw k1, eax
            (bytes(|a| a.mask_of(Mask(1), RAX)), "c4e17892c8"),
            // kmovw k4, r10d
            (bytes(|a| a.mask_of(Mask(4), R10)), "c4c17892e2"),
            // bzhi eax, eax, esi
            (bytes(|a| a.low_bits(RAX, RAX, RSI)), "c4e248f5c0"),
            // mov rax, [rdi+16]
            (bytes(|a| a.load_address(RAX, RDI, 16)), "488b8710000000"),
            // mov r9, [rdi+40]
            (bytes(|a| a.load_address(R9, RDI, 40)), "4c8b8f28000000"),
            // xor r11, r11
            (bytes(|a| a.zero(R11)), "4d31db"),
            // add r11, 1000
            (bytes(|a| a.add(R11, 1000)), "4981c3e8030000"),
            // sub rsi, 1000
            (bytes(|a| a.subtract(RSI, 1000)), "4881eee8030000"),
            // mov eax, -1
            (bytes(|a| a.ones(RAX)), "b8ffffffff"),
            // vzeroupper; ret
            (bytes(|a| a.leave()), "c5f877c3"),
        ];
        for (made, expected) in cases {
            assert_eq!(made, expected);
        }
    }

    #[test]
    fn jumps_reach_their_targets_and_constants_are_shared() {
        let mut a = Assembler::filling();
        let top = a.here();
        let out = a.jump(JumpCondition::Equal);
        a.jump_back(JumpCondition::Above, top);
        a.land(out);
        a.vector(opcodes::ADDPS, 0, 0, Rm::Splat(5), WriteMask::All, None);
        a.vector(opcodes::ADDPS, 0, 0, Rm::Splat(6), WriteMask::All, None);
        a.vector(opcodes::ADDPS, 0, 0, Rm::Splat(5), WriteMask::All, None);
        let code = a.finish();
        let distance = |at: usize| i32::from_le_bytes(code[at..at + 4].try_into().unwrap());
        assert_eq!((distance(2), distance(8)), (6, -12));
        // Three instructions of ten bytes from 12 on end at 42; the constants start at 44.
        assert_eq!([18, 28, 38].map(distance), [22, 16, 2]);
        assert_eq!(code[44..], [5, 0, 0, 0, 6, 0, 0, 0]);
    }
}
