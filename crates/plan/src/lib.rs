//! Estimates memory, step time and cost of a program on TPU slices, GPUs and this CPU, and recommends a machine.
//!
//! No device is used. [`ChipTables`] hold chips, slices and prices with their sources; [`TpuSlice`] resolves the names that
//! clouds use. [`KernelList`] is a program as kernels, [`analytic`] the model that times them, [`bill`] the price.
//!
//! ```
//! use systole_ir::{DType, GraphBuilder, TensorType};
//! use systole_plan::{HalfType, Machine, ChipTables, KernelList, analytic};
//! let g = GraphBuilder::new("main");
//! let ty = TensorType::new(DType::BF16, [4096, 4096]);
//! let (a, b) = (g.parameter(ty.clone(), "a"), g.parameter(ty, "b"));
//! let work = KernelList::of(&g.finish(&[a.dot(&b)]).unwrap());
//! let tables = ChipTables::built_in().unwrap();
//! let chip = Machine::of("v5e-1", &tables).unwrap();
//! let estimate = analytic(&work, &chip, &tables, HalfType::Bf16).unwrap();
//! // libtpu's compiler estimates 0.721 ms.
//! assert!((estimate.device.likely / 0.721e-3 - 1.0).abs() < 0.15);
//! assert_eq!(estimate.limit(), "MXU");
//! ```

mod advice;
mod chips;
mod cloud_names;
mod collective;
mod compiled_estimate;
mod device_model;
mod energy;
mod estimate;
mod gpu_target_config;
mod hlo_module;
mod kernel_list;
mod machine;
mod memory;
mod price;
mod roofline;
mod table;
mod tpu_slice;
mod traffic;
mod value_placement;

pub use advice::{Advice, MachineChoice, PlanLimits, advise, dollars, duration};
pub use chips::{ChipFigures, ComparedFigure};
pub use cloud_names::{CloudNames, GkeNode};
pub use collective::{CollectiveMesh, all_reduce};
pub use compiled_estimate::compiled;
pub use device_model::{CpuCeilings, DeviceModel, MatrixUnits};
pub use energy::{Energy, digits, joules};
pub use estimate::{DISPATCH, Estimate, HostTime, KernelTime, TimeRange, analytic};
pub use kernel_list::{ArgumentRole, KernelList, KernelWork, MatrixProduct, MemoryArray, ProgramArgument};
pub use machine::{HalfType, Machine};
pub use memory::MemoryNeed;
pub use price::{Bill, bill, regions};
pub use roofline::{DimPadding, KernelTimeParts};
pub use table::{ChipTables, FittedConstants, Gpu, GpuTarget, HistoricChip, Price, PrintedFigure, Tpu};
pub use tpu_slice::TpuSlice;
pub use traffic::{CollectiveTraffic, traffic};
