//! Opcodes of the instructions that loops consist of. Names are the mnemonics without the leading `v`.
#![forbid(unsafe_code)]

/// A vector instruction: mandatory prefix (0: none, 1: 66, 2: F3, 3: F2), opcode map (1: 0F, 2: 0F38, 3: 0F3A), opcode.
/// All three are the same for AVX-512 and AVX2 where both have the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op(pub u8, pub u8, pub u8);

pub const ADDPS: Op = Op(0, 1, 0x58);
pub const SUBPS: Op = Op(0, 1, 0x5c);
pub const MULPS: Op = Op(0, 1, 0x59);
pub const DIVPS: Op = Op(0, 1, 0x5e);
pub const MINPS: Op = Op(0, 1, 0x5d);
pub const MAXPS: Op = Op(0, 1, 0x5f);
pub const SQRTPS: Op = Op(0, 1, 0x51);
/// `roundps` in AVX2.
pub const RNDSCALEPS: Op = Op(1, 3, 0x08);
pub const SCALEFPS: Op = Op(1, 2, 0x2c);
pub const FMADD132PS: Op = Op(1, 2, 0x98);
pub const FMADD213PS: Op = Op(1, 2, 0xa8);
pub const FMADD231PS: Op = Op(1, 2, 0xb8);
pub const PADDD: Op = Op(1, 1, 0xfe);
pub const PSUBD: Op = Op(1, 1, 0xfa);
pub const PMULLD: Op = Op(1, 2, 0x40);
pub const PANDD: Op = Op(1, 1, 0xdb);
pub const PORD: Op = Op(1, 1, 0xeb);
pub const PXORD: Op = Op(1, 1, 0xef);
pub const PMINSD: Op = Op(1, 2, 0x39);
pub const PMINUD: Op = Op(1, 2, 0x3b);
pub const PMAXSD: Op = Op(1, 2, 0x3d);
pub const PMAXUD: Op = Op(1, 2, 0x3f);
pub const PSLLVD: Op = Op(1, 2, 0x47);
pub const PSRLVD: Op = Op(1, 2, 0x45);
pub const PTERNLOGD: Op = Op(1, 3, 0x25);
pub const PCMPEQD: Op = Op(1, 1, 0x76);
pub const PCMPGTD: Op = Op(1, 1, 0x66);
pub const PANDN: Op = Op(1, 1, 0xdf);
pub const BLENDVPS: Op = Op(1, 3, 0x4a);
pub const PSHUFB: Op = Op(1, 2, 0x00);
pub const EXTRACTI128: Op = Op(1, 3, 0x39);
pub const PBROADCASTD: Op = Op(1, 2, 0x58);
pub const MASKMOVPS_LOAD: Op = Op(1, 2, 0x2c);
pub const MASKMOVPS_STORE: Op = Op(1, 2, 0x2e);
pub const MOVD_LOAD: Op = Op(1, 1, 0x6e);
pub const MOVD_STORE: Op = Op(1, 1, 0x7e);
pub const MOVLPS_STORE: Op = Op(0, 1, 0x13);
pub const CVTDQ2PS: Op = Op(0, 1, 0x5b);
pub const CVTUDQ2PS: Op = Op(3, 1, 0x7a);
pub const CVTTPS2DQ: Op = Op(2, 1, 0x5b);
pub const CVTTPS2UDQ: Op = Op(0, 1, 0x78);
pub const CVTPH2PS: Op = Op(1, 2, 0x13);
pub const CVTPS2PH: Op = Op(1, 3, 0x1d);
/// Rounds a zmm to bf16 in a ymm (AVX512_BF16).
pub const CVTNEPS2BF16: Op = Op(2, 2, 0x72);
pub const CMPPS: Op = Op(0, 1, 0xc2);
pub const PCMPD: Op = Op(1, 3, 0x1f);
pub const PCMPUD: Op = Op(1, 3, 0x1e);
pub const PTESTMD: Op = Op(1, 2, 0x27);
pub const BLENDMPS: Op = Op(1, 2, 0x65);
pub const MOVAPS: Op = Op(0, 1, 0x28);
pub const MOVUPS_LOAD: Op = Op(0, 1, 0x10);
pub const MOVUPS_STORE: Op = Op(0, 1, 0x11);
pub const BROADCASTSS: Op = Op(1, 2, 0x18);
pub const PBROADCASTB: Op = Op(1, 2, 0x78);
pub const PBROADCASTW: Op = Op(1, 2, 0x79);
pub const PMOVZXBD: Op = Op(1, 2, 0x31);
pub const PMOVZXWD: Op = Op(1, 2, 0x33);
pub const PMOVSXBD: Op = Op(1, 2, 0x21);
pub const PMOVSXWD: Op = Op(1, 2, 0x23);
pub const PMOVDB: Op = Op(2, 2, 0x31);
pub const PMOVDW: Op = Op(2, 2, 0x33);
/// Shifts by an immediate; the kind of shift is in ModRM's `reg` field.
pub const SHIFTS: Op = Op(1, 1, 0x72);
pub const SHIFT_RIGHT: u8 = 2;
pub const SHIFT_RIGHT_SIGNED: u8 = 4;
pub const SHIFT_LEFT: u8 = 6;
/// Mask instructions (VEX map 1).
pub const KAND: u8 = 0x41;
pub const KANDN: u8 = 0x42;
pub const KOR: u8 = 0x45;
pub const KXNOR: u8 = 0x46;
pub const KXOR: u8 = 0x47;
