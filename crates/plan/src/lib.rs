//! What a TPU slice, a GPU or this CPU would need for a program: memory, time, price, and what to choose.
//!
//! Nothing here touches a device. [`Tables`] hold chips, slices and prices with their sources; [`Slice`] resolves the
//! names that clouds use. [`Work`] is a program as kernels, [`analytic`] the model that times them, [`bill`] the price.
//!
//! ```
//! use systole_ir::{DType, GraphBuilder, TensorType};
//! use systole_plan::{Half, Machine, Tables, Work, analytic};
//! let g = GraphBuilder::new("main");
//! let ty = TensorType::new(DType::BF16, [4096, 4096]);
//! let (a, b) = (g.parameter(ty.clone(), "a"), g.parameter(ty, "b"));
//! let work = Work::of(&g.finish(&[a.dot(&b)]).unwrap());
//! let tables = Tables::built_in().unwrap();
//! let chip = Machine::of("v5e-1", &tables).unwrap();
//! let estimate = analytic(&work, &chip, &tables, Half::Bf16).unwrap();
//! // libtpu's compiler estimates 0.721 ms.
//! assert!((estimate.device.likely / 0.721e-3 - 1.0).abs() < 0.15);
//! assert_eq!(estimate.limit(), "MXU");
//! ```

mod chips;
mod choice;
mod cloud;
mod collective;
mod compiled;
mod device;
mod energy;
mod estimate;
mod gpu;
mod hlo;
mod machine;
mod memory;
mod placement;
mod price;
mod roofline;
mod slice;
mod table;
mod traffic;
mod work;

pub use chips::{Chip, Compared};
pub use choice::{Advice, Choice, Wish, advise, dollars, duration};
pub use cloud::{Cloud, Node};
pub use collective::{Mesh, all_reduce};
pub use compiled::compiled;
pub use device::{Cpu, Device, Tile};
pub use energy::{Energy, digits, joules};
pub use estimate::{DISPATCH, Estimate, Host, KernelTime, Range, analytic};
pub use machine::{Half, Machine};
pub use memory::Memory;
pub use price::{Bill, bill, regions};
pub use roofline::{Padding, Time};
pub use slice::Slice;
pub use table::{Fit, Gpu, GpuTarget, Past, Price, Printed, Tables, Tpu};
pub use traffic::{Traffic, traffic};
pub use work::{Argument, Array, Kernel, Product, Role, Work};
