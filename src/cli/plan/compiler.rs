//! Estimates from Google's compiler: one compile for each TPU generation and share of the batch.

use super::subject::Share;
use std::collections::HashMap;
use systole::devices::plugin_cache;
use systole_ir::Result;
use systole_pjrt::{Platform, TpuCompiler, discover, program_text};
use systole_plan::{Estimate, Half, Machine, Said, Slice, Tables, analytic, compiled};
use systole_runtime::{AheadOfTime, AheadReport, AheadRequest};

/// The compiler and what it has said.
pub(super) struct Compiler {
    compiler: TpuCompiler,
    said: HashMap<(String, usize), Result<AheadReport>>,
}

impl Compiler {
    /// libtpu, where it is found.
    pub(super) fn find() -> Result<Compiler> {
        let library = discover(Platform::Tpu, None, plugin_cache().as_deref()).require(Platform::Tpu)?;
        Ok(Compiler { compiler: TpuCompiler::new(library)?, said: HashMap::new() })
    }

    /// The compiled estimate, or the analytic one and a note where the compiler refuses the program.
    pub(super) fn estimate(
        &mut self,
        share: &Share,
        slice: &Slice,
        machine: &Machine,
        tables: &Tables,
        notes: &mut Vec<String>,
    ) -> Result<Estimate> {
        let small = smallest(slice, tables);
        let key = (small.generation.clone(), share.batch);
        let report = match self.said.get(&key) {
            Some(report) => report,
            None => {
                let report = self.compile(share, &small, tables);
                self.said.entry(key).or_insert(report)
            }
        };
        match report {
            Ok(r) => compiled(&said(r), &share.work, machine, tables),
            Err(e) => {
                notes.push(format!("analytic, because the compiler refused: {}", e.what()));
                analytic(&share.work, machine, tables, Half::Bf16)
            }
        }
    }

    fn compile(&self, share: &Share, slice: &Slice, tables: &Tables) -> Result<AheadReport> {
        // As training compiles it: every argument may be given away. A program that is no step keeps its arguments.
        let donated = if share.batch > 0 { share.graph.params.len() } else { 0 };
        let program = program_text(&share.graph, &(0..donated).collect::<Vec<_>>());
        let request = AheadRequest::new(program, slice.libtpu(tables).parse()?);
        self.compiler.compile_ahead(&AheadRequest { hlo: true, ..request })
    }
}

/// The generation's smallest slice: a program for one of its devices is the same in all.
fn smallest(slice: &Slice, tables: &Tables) -> Slice {
    let all = Slice::all(tables).into_iter().filter(|s| s.generation == slice.generation);
    all.min_by_key(|s| s.chips).unwrap_or_else(|| slice.clone())
}

fn said(r: &AheadReport) -> Said<'_> {
    let m = &r.memory;
    Said {
        hlo: &r.hlo,
        arguments: m.arguments as f64,
        results: m.outputs.saturating_sub(m.aliased) as f64,
        temporaries: m.temporaries as f64,
        code: m.code as f64,
        limit: r.memory_limit.map(|l| l as f64),
    }
}
