//! Opcodes of the vector instructions that the JIT emits. Names are the mnemonics without the leading `v`.
#![forbid(unsafe_code)]

/// Opcode of a vector instruction: mandatory prefix (0: none, 1: 66, 2: F3, 3: F2), opcode map (1: 0F, 2: 0F38, 3:
/// 0F3A), opcode byte. All three are the same for AVX-512 and AVX2 if both have the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode(pub u8, pub u8, pub u8);

pub const ADDPS: Opcode = Opcode(0, 1, 0x58);
pub const SUBPS: Opcode = Opcode(0, 1, 0x5c);
pub const MULPS: Opcode = Opcode(0, 1, 0x59);
pub const DIVPS: Opcode = Opcode(0, 1, 0x5e);
pub const MINPS: Opcode = Opcode(0, 1, 0x5d);
pub const MAXPS: Opcode = Opcode(0, 1, 0x5f);
pub const SQRTPS: Opcode = Opcode(0, 1, 0x51);
/// `roundps` in AVX2.
pub const RNDSCALEPS: Opcode = Opcode(1, 3, 0x08);
pub const SCALEFPS: Opcode = Opcode(1, 2, 0x2c);
pub const FMADD132PS: Opcode = Opcode(1, 2, 0x98);
pub const FMADD213PS: Opcode = Opcode(1, 2, 0xa8);
pub const FMADD231PS: Opcode = Opcode(1, 2, 0xb8);
/// Added to the opcode byte of a fused multiply-add: subtracts the addend (FMSUB), or the product (FNMADD).
pub const MINUS_ADDEND: u8 = 2;
pub const MINUS_PRODUCT: u8 = 4;
pub const PADDD: Opcode = Opcode(1, 1, 0xfe);
pub const PSUBD: Opcode = Opcode(1, 1, 0xfa);
pub const PMULLD: Opcode = Opcode(1, 2, 0x40);
pub const PANDD: Opcode = Opcode(1, 1, 0xdb);
pub const PORD: Opcode = Opcode(1, 1, 0xeb);
pub const PXORD: Opcode = Opcode(1, 1, 0xef);
pub const PMINSD: Opcode = Opcode(1, 2, 0x39);
pub const PMINUD: Opcode = Opcode(1, 2, 0x3b);
pub const PMAXSD: Opcode = Opcode(1, 2, 0x3d);
pub const PMAXUD: Opcode = Opcode(1, 2, 0x3f);
pub const PSLLVD: Opcode = Opcode(1, 2, 0x47);
pub const PSRLVD: Opcode = Opcode(1, 2, 0x45);
pub const PTERNLOGD: Opcode = Opcode(1, 3, 0x25);
pub const PCMPEQD: Opcode = Opcode(1, 1, 0x76);
pub const PCMPGTD: Opcode = Opcode(1, 1, 0x66);
pub const PANDN: Opcode = Opcode(1, 1, 0xdf);
pub const BLENDVPS: Opcode = Opcode(1, 3, 0x4a);
pub const PSHUFB: Opcode = Opcode(1, 2, 0x00);
pub const EXTRACTI128: Opcode = Opcode(1, 3, 0x39);
pub const PBROADCASTD: Opcode = Opcode(1, 2, 0x58);
pub const MASKMOVPS_LOAD: Opcode = Opcode(1, 2, 0x2c);
pub const MASKMOVPS_STORE: Opcode = Opcode(1, 2, 0x2e);
pub const MOVD_LOAD: Opcode = Opcode(1, 1, 0x6e);
pub const MOVD_STORE: Opcode = Opcode(1, 1, 0x7e);
pub const MOVLPS_STORE: Opcode = Opcode(0, 1, 0x13);
pub const CVTDQ2PS: Opcode = Opcode(0, 1, 0x5b);
pub const CVTUDQ2PS: Opcode = Opcode(3, 1, 0x7a);
pub const CVTTPS2DQ: Opcode = Opcode(2, 1, 0x5b);
pub const CVTTPS2UDQ: Opcode = Opcode(0, 1, 0x78);
pub const CVTPH2PS: Opcode = Opcode(1, 2, 0x13);
pub const CVTPS2PH: Opcode = Opcode(1, 3, 0x1d);
/// Rounds a zmm to bf16 in a ymm (AVX512_BF16).
pub const CVTNEPS2BF16: Opcode = Opcode(2, 2, 0x72);
pub const CMPPS: Opcode = Opcode(0, 1, 0xc2);
pub const PCMPD: Opcode = Opcode(1, 3, 0x1f);
pub const PCMPUD: Opcode = Opcode(1, 3, 0x1e);
pub const PTESTMD: Opcode = Opcode(1, 2, 0x27);
pub const BLENDMPS: Opcode = Opcode(1, 2, 0x65);
pub const MOVAPS: Opcode = Opcode(0, 1, 0x28);
pub const MOVUPS_LOAD: Opcode = Opcode(0, 1, 0x10);
pub const MOVUPS_STORE: Opcode = Opcode(0, 1, 0x11);
pub const BROADCASTSS: Opcode = Opcode(1, 2, 0x18);
pub const PBROADCASTB: Opcode = Opcode(1, 2, 0x78);
pub const PBROADCASTW: Opcode = Opcode(1, 2, 0x79);
pub const PMOVZXBD: Opcode = Opcode(1, 2, 0x31);
pub const PMOVZXWD: Opcode = Opcode(1, 2, 0x33);
pub const PMOVSXBD: Opcode = Opcode(1, 2, 0x21);
pub const PMOVSXWD: Opcode = Opcode(1, 2, 0x23);
pub const PMOVDB: Opcode = Opcode(2, 2, 0x31);
pub const PMOVDW: Opcode = Opcode(2, 2, 0x33);
/// Shifts by an immediate; the kind of shift is in ModRM's `reg` field.
pub const SHIFTS: Opcode = Opcode(1, 1, 0x72);
pub const SHIFT_RIGHT: u8 = 2;
pub const SHIFT_RIGHT_SIGNED: u8 = 4;
pub const SHIFT_LEFT: u8 = 6;
/// Opcode of the mask instruction KAND (VEX map 1).
pub const KAND: u8 = 0x41;
pub const KANDN: u8 = 0x42;
pub const KOR: u8 = 0x45;
pub const KXNOR: u8 = 0x46;
pub const KXOR: u8 = 0x47;

/// Set in an opcode's prefix for instructions on 64-bit elements or registers (W bit of the VEX prefix).
pub const WIDE: u8 = 0x80;
pub const ADDPD: Opcode = Opcode(1, 1, 0x58);
pub const SUBPD: Opcode = Opcode(1, 1, 0x5c);
pub const MULPD: Opcode = Opcode(1, 1, 0x59);
pub const DIVPD: Opcode = Opcode(1, 1, 0x5e);
pub const MINPD: Opcode = Opcode(1, 1, 0x5d);
pub const MAXPD: Opcode = Opcode(1, 1, 0x5f);
pub const SQRTPD: Opcode = Opcode(1, 1, 0x51);
pub const ROUNDPD: Opcode = Opcode(1, 3, 0x09);
pub const CMPPD: Opcode = Opcode(1, 1, 0xc2);
pub const BLENDVPD: Opcode = Opcode(1, 3, 0x4b);
pub const FMADD231PD: Opcode = Opcode(WIDE | 1, 2, 0xb8);
pub const PMOVSXDQ: Opcode = Opcode(1, 2, 0x25);
pub const CVTPS2PD: Opcode = Opcode(0, 1, 0x5a);
pub const CVTPD2PS: Opcode = Opcode(1, 1, 0x5a);
pub const CVTDQ2PD: Opcode = Opcode(2, 1, 0xe6);
/// From a general-purpose register of 64 bits.
pub const CVTSI2SD: Opcode = Opcode(WIDE | 3, 1, 0x2a);
pub const MOVSS_LOAD: Opcode = Opcode(2, 1, 0x10);
pub const MOVSS_STORE: Opcode = Opcode(2, 1, 0x11);
pub const MOVSD_LOAD: Opcode = Opcode(3, 1, 0x10);
pub const MOVSD_STORE: Opcode = Opcode(3, 1, 0x11);
/// To and from a general-purpose register of 64 bits.
pub const MOVQ_LOAD: Opcode = Opcode(WIDE | 1, 1, 0x6e);
pub const MOVQ_STORE: Opcode = Opcode(WIDE | 1, 1, 0x7e);
