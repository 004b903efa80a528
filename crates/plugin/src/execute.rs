//! Executes programs: small ones on the caller's thread, others asynchronously.

use crate::buffer::{BufferContent, EngineArrays, GlobalArray, PendingArrays, PluginBuffer};
use crate::call::{ApiCall, CallError, CallResult, destroy, list, seen};
use crate::event::PluginEvent;
use crate::executable::{CompiledProgram, PluginExecutable, ProgramEngine};
use crate::ffi::FfiUserData;
use crate::multi_host::HostLinks;
use crate::signals::check_fork;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use systole_cpu::InterruptMark;
use systole_dist::ProcessExchange;
use systole_ir::{Literal, TensorType, ensure};
use systole_mlir::device_sharding::DeviceSharding;
use systole_pjrt::sys::{self, OpaquePtr, code};
use systole_runtime::{Buffer, ExecutableArg, trace};

/// Contents of each argument on each device.
type DeviceArgs = Vec<Vec<BufferContent>>;

/// Output arrays of a run, for each result.
enum RunOutputs {
    /// Global arrays.
    Together(Vec<Vec<Buffer>>),
    /// Arrays per device.
    Each(Vec<Vec<Vec<Buffer>>>),
    /// The whole result, on each device.
    Same(Vec<Vec<Vec<Buffer>>>),
}

impl CompiledProgram {
    /// Checks the arguments before any is donated.
    fn check(&self, arrays: &[&PluginBuffer]) -> CallResult {
        for (i, (array, kind)) in arrays.iter().zip(&self.signature.arguments).enumerate() {
            if array.kind != *kind {
                let what = format!("argument {i} is {}, expected {kind}", array.kind);
                return Err(CallError::invalid(what));
            }
            if array.is_gone() {
                let what = "Invalid buffer passed: buffer has been deleted or donated before";
                return Err(CallError::invalid(format!("argument {i}: {what}")));
            }
        }
        Ok(())
    }

    fn gives(&self, i: usize, kept: &[i64]) -> bool {
        self.signature.donated.get(i).copied().unwrap_or(false) && !kept.contains(&(i as i64))
    }

    /// Checks that no donated argument is used twice in a call.
    fn check_donated(&self, arrays: &[&PluginBuffer], kept: &[i64]) -> CallResult {
        for (i, array) in arrays.iter().enumerate().filter(|(i, _)| self.gives(*i, kept)) {
            let again = arrays.iter().enumerate().position(|(k, a)| k != i && std::ptr::eq(*a, *array));
            if let Some(k) = again {
                let what = if self.gives(k, kept) {
                    "Attempt to donate the same buffer twice in Execute()"
                } else {
                    "f(donate(a), a): Attempt to donate a buffer which is also used by the same call to Execute()"
                };
                return Err(CallError::invalid(format!("{what} (arguments {i} and {k})")));
            }
        }
        Ok(())
    }

    /// Returns the global array of which a global argument's contents are all shards of this process.
    fn global(&self, tiles: &DeviceSharding, own: &[BufferContent]) -> Option<Arc<GlobalArray>> {
        let Some(BufferContent::Part(whole, _)) = own.first() else { return None };
        let same = |(d, c): (usize, &BufferContent)| match c {
            BufferContent::Part(other, at) => Arc::ptr_eq(other, whole) && *at == self.first + d,
            _ => false,
        };
        let is_whole = whole.tiles == *tiles && whole.ids == self.ids && own.iter().enumerate().all(same);
        is_whole.then(|| whole.clone())
    }

    /// Returns the arrays that hold a global argument.
    fn together(&self, i: usize, mut own: Vec<BufferContent>) -> CallResult<Vec<Buffer>> {
        let missing = || CallError::invalid("an argument is missing");
        if self.ids.len() <= 1 {
            return own.pop().ok_or_else(missing)?.wait();
        }
        let tiles = self.signature.argument_tiles.get(i).ok_or_else(missing)?;
        if let Some(whole) = self.global(tiles, &own) {
            own.clear();
            return match Arc::try_unwrap(whole) {
                Ok(own) => own.held.wait(),
                Err(shared) => shared.held.clone().wait(),
            };
        }
        if tiles.is_replicated() {
            return own.swap_remove(0).wait();
        }
        let parts = own.into_iter().map(BufferContent::wait).collect::<Result<Vec<_>, _>>()?;
        let whole = |(k, ty): (usize, &systole_ir::TensorType)| {
            let own = |arrays: &Vec<Buffer>| Ok(arrays.get(k).ok_or_else(missing)?.to_literal()?);
            let own = parts.iter().map(own).collect::<CallResult<Vec<Literal>>>()?;
            Ok(tiles.join(ty, &own)?.into())
        };
        self.signature.wholes.get(i).ok_or_else(missing)?.iter().enumerate().map(whole).collect()
    }

    /// Gathers the global arguments of a program on devices of several processes: this process's shards of an argument
    /// become shards of a global array.
    ///
    /// First, all processes exchange the runs of which the arguments are results: each has the whole of such a result.
    fn gathered(&self, mut given: DeviceArgs) -> CallResult<DeviceArgs> {
        let Some(line) = &self.line else { return Ok(given) };
        let tiles = &self.signature.argument_tiles;
        let sharded: Vec<usize> = (0..given.len()).filter(|i| !tiles[*i].is_replicated()).collect();
        if sharded.is_empty() {
            return Ok(given);
        }
        let origin = |i: &usize| self.global(&tiles[*i], &given[*i]).and_then(|whole| whole.origin);
        let origins: Vec<u8> = sharded
            .iter()
            .map(origin)
            .flat_map(|o| <[u64; 2]>::from(o.unwrap_or_default()))
            .flat_map(u64::to_le_bytes)
            .collect();
        let all = line.all(&format!("arguments of {}", self.name), origins)?;
        let known = |k: usize| {
            let own: Vec<_> = all.iter().map(|bytes| bytes.get(16 * k..16 * (k + 1))).collect();
            own[0] != Some(&[0; 16][..]) && own.iter().all(|o| *o == own[0] && o.is_some())
        };
        let wanted: Vec<usize> =
            sharded.iter().enumerate().filter(|(k, _)| !known(*k)).map(|(_, i)| *i).collect();
        if !wanted.is_empty() {
            self.exchange(line, &wanted, &mut given)?;
        }
        Ok(given)
    }

    /// Exchanges the shards of some arguments.
    fn exchange(&self, line: &HostLinks, wanted: &[usize], given: &mut DeviceArgs) -> CallResult {
        let mut bytes = Vec::new();
        let shards = (0..self.devices.len()).flat_map(|d| wanted.iter().map(move |&i| (i, d)));
        for (i, d) in shards {
            for array in given[i][d].clone().wait()? {
                bytes.extend_from_slice(array.to_literal()?.bytes());
            }
        }
        let all = line.all(&format!("shards of {}", self.name), bytes)?.concat();
        let mut rest = &all[..];
        let short = || CallError::invalid("a process sent shards of another size");
        let mut shards: Vec<Vec<Vec<Literal>>> = vec![Vec::new(); wanted.len()];
        for _ in 0..self.ids.len() {
            for (own, i) in shards.iter_mut().zip(wanted) {
                let mut arrays = Vec::new();
                for ty in &self.signature.wholes[*i] {
                    let ty = TensorType::new(ty.dtype, self.signature.argument_tiles[*i].local(&ty.shape)?);
                    let (first, after) = rest.split_at_checked(ty.bytes()).ok_or_else(short)?;
                    arrays.push(Literal::from_bytes(ty, first)?);
                    rest = after;
                }
                own.push(arrays);
            }
        }
        for (own, i) in shards.into_iter().zip(wanted) {
            let tiles = &self.signature.argument_tiles[*i];
            let whole = |(k, ty): (usize, &TensorType)| {
                let parts: Vec<Literal> = own.iter().map(|arrays| arrays[k].clone()).collect();
                Ok(tiles.join(ty, &parts)?.into())
            };
            let arrays = self.signature.wholes[*i]
                .iter()
                .enumerate()
                .map(whole)
                .collect::<CallResult<Vec<Buffer>>>()?;
            given[*i] = self.parts(EngineArrays::Ready(arrays), tiles.clone(), None);
        }
        Ok(())
    }

    /// Returns this process's shards of a global array.
    fn parts(
        &self,
        held: EngineArrays,
        tiles: DeviceSharding,
        origin: Option<(u64, u64)>,
    ) -> Vec<BufferContent> {
        let whole = Arc::new(GlobalArray { held, tiles, ids: self.ids.clone(), origin });
        (0..self.devices.len()).map(|d| BufferContent::Part(whole.clone(), self.first + d)).collect()
    }

    /// Runs the program on this thread; an interrupt after `mark` ends it.
    fn compute(
        &self,
        mark: InterruptMark,
        user_data: Arc<FfiUserData>,
        given: DeviceArgs,
    ) -> CallResult<RunOutputs> {
        let run = || match self.module.is_empty() {
            true => self.computed(given),
            false => trace::within(&self.module, || self.computed(given)),
        };
        mark.run(|| user_data.within(run))
    }

    fn computed(&self, given: DeviceArgs) -> CallResult<RunOutputs> {
        match &self.engine {
            ProgramEngine::Alone(program) => {
                let given = self.gathered(given)?;
                let mut args = Vec::with_capacity(given.len());
                for (i, own) in given.into_iter().enumerate() {
                    args.extend(self.together(i, own)?.into_iter().map(ExecutableArg::Donate));
                }
                Ok(RunOutputs::Together(self.grouped(program.run(args)?)))
            }
            ProgramEngine::Same(program) => {
                let given = self.gathered(given)?;
                let mut lists: Vec<Vec<ExecutableArg<'static>>> =
                    self.devices.iter().map(|_| Vec::new()).collect();
                for (i, own) in given.into_iter().enumerate() {
                    let whole =
                        self.signature.argument_tiles.get(i).is_some_and(DeviceSharding::is_replicated);
                    if whole && own.iter().all(|c| matches!(c, BufferContent::Own(_))) {
                        for (list, content) in lists.iter_mut().zip(own) {
                            list.extend(content.wait()?.into_iter().map(ExecutableArg::Donate));
                        }
                        continue;
                    }
                    let arrays = self.together(i, own)?;
                    lists
                        .iter_mut()
                        .for_each(|list| list.extend(arrays.iter().cloned().map(ExecutableArg::Donate)));
                }
                let results = program.run(lists)?;
                Ok(RunOutputs::Same(results.into_iter().map(|own| self.grouped(own)).collect()))
            }
            ProgramEngine::Each(program) => {
                let results = program.run(self.lists(given)?)?;
                Ok(RunOutputs::Each(results.into_iter().map(|own| self.grouped(own)).collect()))
            }
            ProgramEngine::Copies(program) => {
                let one = |args| Ok(self.grouped(program.run(args)?));
                Ok(RunOutputs::Each(self.lists(given)?.into_iter().map(one).collect::<CallResult<_>>()?))
            }
        }
    }

    fn lists(&self, given: DeviceArgs) -> Result<Vec<Vec<ExecutableArg<'static>>>, CallError> {
        let mut lists: Vec<Vec<ExecutableArg<'static>>> = self.devices.iter().map(|_| Vec::new()).collect();
        for own in given {
            for (list, content) in lists.iter_mut().zip(own) {
                list.extend(content.wait()?.into_iter().map(ExecutableArg::Donate));
            }
        }
        Ok(lists)
    }

    /// Groups the arrays by result.
    fn grouped(&self, arrays: Vec<Buffer>) -> Vec<Vec<Buffer>> {
        let mut arrays = arrays.into_iter();
        self.result_arrays.iter().map(|n| arrays.by_ref().take(*n).collect()).collect()
    }

    /// Returns the contents of each result on each device.
    fn contents(&self, made: RunOutputs) -> Vec<Vec<BufferContent>> {
        let run = self.line.as_ref().map(|line| line.next_run());
        let ready = |(k, arrays)| self.shares(run, k, EngineArrays::Ready(arrays));
        match made {
            RunOutputs::Together(results) => results.into_iter().enumerate().map(ready).collect(),
            RunOutputs::Same(mut devices) => {
                (0..self.signature.results.len()).map(|k| self.own_shares(run, k, &mut devices)).collect()
            }
            RunOutputs::Each(devices) => {
                let mut shares: Vec<Vec<BufferContent>> =
                    self.signature.results.iter().map(|_| Vec::new()).collect();
                for own in devices {
                    let own = own.into_iter().map(|arrays| BufferContent::Own(EngineArrays::Ready(arrays)));
                    shares.iter_mut().zip(own).for_each(|(all, content)| all.push(content));
                }
                shares
            }
        }
    }

    /// Returns each device's contents of a replicated result: its own, or a shard of the first device's.
    fn own_shares(&self, run: Option<u64>, k: usize, devices: &mut [Vec<Vec<Buffer>>]) -> Vec<BufferContent> {
        let mut taken = devices.iter_mut().map(|own| std::mem::take(&mut own[k]));
        if self.signature.result_tiles.get(k).is_some_and(DeviceSharding::is_replicated) {
            return taken.map(|arrays| BufferContent::Own(EngineArrays::Ready(arrays))).collect();
        }
        if self.has_terms(k) {
            let own = taken
                .enumerate()
                .map(|(d, arrays)| self.shares(run, k, EngineArrays::Ready(arrays)).into_iter().nth(d));
            return own.flatten().collect();
        }
        taken.next().map_or(Vec::new(), |first| self.shares(run, k, EngineArrays::Ready(first)))
    }

    /// Whether each device returns its own term of a result.
    fn has_terms(&self, k: usize) -> bool {
        self.signature.terms.get(k).copied().unwrap_or(false)
    }

    /// Returns each device's contents of a result.
    fn shares(&self, run: Option<u64>, k: usize, held: EngineArrays) -> Vec<BufferContent> {
        match self.signature.result_tiles.get(k) {
            Some(tiles) if self.ids.len() > 1 => {
                let tiles = if self.has_terms(k) { tiles.without_terms() } else { tiles.clone() };
                self.parts(held, tiles, run.filter(|_| !self.has_terms(k)).map(|run| (run, k as u64)))
            }
            _ => vec![BufferContent::Own(held)],
        }
    }

    /// Runs the program on the client's thread; the results are available after the event.
    fn compute_later(
        self: &Arc<CompiledProgram>,
        user_data: Arc<FfiUserData>,
        given: DeviceArgs,
    ) -> Result<(Vec<EngineArrays>, PluginEvent), CallError> {
        let event = PluginEvent::coming();
        let pending: Vec<Arc<PendingArrays>> =
            self.signature.results.iter().map(|_| PendingArrays::new(event.clone())).collect();
        let held = pending.iter().map(|p| EngineArrays::Later(p.clone())).collect();
        let (program, told, mark) = (self.clone(), event.clone(), InterruptMark::now());
        let job = move || {
            let made = catch_unwind(AssertUnwindSafe(|| program.compute(mark, user_data, given)));
            let defect = CallError { code: code::INTERNAL, message: "a bug in Systole's plugin".into() };
            let outcome = match made.unwrap_or(Err(defect)) {
                Ok(RunOutputs::Together(results)) => {
                    pending.iter().zip(results).for_each(|(p, arrays)| p.set(arrays));
                    Ok(())
                }
                Ok(RunOutputs::Each(_) | RunOutputs::Same(_)) => {
                    Err(CallError::invalid("per-device results in an asynchronous run"))
                }
                Err(failure) => Err(failure),
            };
            // Drops this reference, so that waiting callers become the only owner and may update in place.
            drop(pending);
            told.happens(outcome);
        };
        let closed = || CallError::invalid("the client is closed");
        self.queue.upgrade().ok_or_else(closed)?.push(job)?;
        Ok((held, event))
    }

    fn is_later(&self, given: &DeviceArgs) -> bool {
        let waits = |c: &BufferContent| c.event().outcome().is_none();
        // A callback may wait for any run in the queue, so programs with callbacks never run there.
        matches!(self.engine, ProgramEngine::Alone(_))
            && self.python.is_empty()
            // The processes run their common programs in the same order.
            && self.line.is_none()
            && (self.is_long || given.iter().flatten().any(waits))
    }
}

/// An execute call.
struct ExecuteCall<'a>(&'a sys::LoadedExecutable_Execute);

impl ExecuteCall<'_> {
    /// Returns the argument buffers of each device.
    ///
    /// # Safety
    /// Pointers are valid according to the C API.
    unsafe fn arrays<'a>(
        &self,
        program: &CompiledProgram,
        kept: &[i64],
    ) -> Result<Vec<Vec<&'a PluginBuffer>>, CallError> {
        let mut arrays: Vec<Vec<&PluginBuffer>> = Vec::with_capacity(self.0.num_devices);
        for device in 0..self.0.num_devices {
            let objects: &[OpaquePtr] = match self.0.num_args {
                0 => &[],
                // SAFETY: one list of that many arguments per device.
                n => unsafe { std::slice::from_raw_parts(*self.0.argument_lists.add(device), n) },
            };
            // SAFETY: the caller passes a pointer that this plugin returned.
            let list =
                objects.iter().map(|a| unsafe { seen::<PluginBuffer>(*a) }).collect::<Result<Vec<_>, _>>()?;
            program.check(&list)?;
            arrays.push(list);
        }
        arrays.iter().try_for_each(|list| program.check_donated(list, kept))?;
        Ok(arrays)
    }

    /// Returns the devices of this run: the program's, or the one that the caller names.
    ///
    /// # Safety
    /// `execute_device` is null or a device of this plugin.
    unsafe fn devices(&self, program: &CompiledProgram) -> CallResult<Vec<OpaquePtr>> {
        if self.0.num_devices != program.devices.len() {
            let what = format!("got {} devices, expected {}", self.0.num_devices, program.devices.len());
            return Err(CallError::invalid(what));
        }
        match (program.devices.len(), self.0.execute_device.is_null()) {
            (1, false) => Ok(vec![self.0.execute_device]),
            _ => Ok(program.devices.clone()),
        }
    }

    /// Returns results to the caller.
    ///
    /// # Safety
    /// The caller's lists have room for every result of every device.
    unsafe fn hand_out(
        &self,
        program: &CompiledProgram,
        devices: &[OpaquePtr],
        shares: Vec<Vec<BufferContent>>,
        end: &PluginEvent,
    ) -> CallResult {
        for (k, own) in shares.into_iter().enumerate() {
            let kind = program
                .signature
                .results
                .get(k)
                .ok_or_else(|| CallError::invalid("the run has too many results"))?;
            for (d, content) in own.into_iter().enumerate() {
                let device = devices.get(d).copied().unwrap_or(std::ptr::null_mut());
                let array = PluginBuffer::object(kind.clone(), content, device, end.clone())?;
                // SAFETY: same contract as this function.
                unsafe { *(*self.0.output_lists.add(d)).add(k) = array };
            }
        }
        if !self.0.device_complete_events.is_null() {
            for d in 0..devices.len() {
                // SAFETY: room for one event per device.
                unsafe { *self.0.device_complete_events.add(d) = end.object() };
            }
        }
        Ok(())
    }
}

impl ApiCall for sys::LoadedExecutable_Execute {
    unsafe fn handle(&mut self) -> CallResult {
        check_fork()?;
        // SAFETY: the caller passes a pointer that this plugin returned.
        let loaded = unsafe { seen::<PluginExecutable>(self.executable)? };
        let program = &loaded.program;
        ensure!(!loaded.is_deleted(), CallError::invalid("the executable was deleted"));
        // SAFETY: as above.
        let devices = unsafe { ExecuteCall(self).devices(program)? };
        if self.num_args != program.signature.arguments.len() {
            let what =
                format!("got {} arguments, expected {}", self.num_args, program.signature.arguments.len());
            return Err(CallError::invalid(what));
        }
        // SAFETY: the caller's options, with a list of that length.
        let (kept, context): (&[i64], _) = match unsafe { self.options.as_ref() } {
            // SAFETY: as above.
            Some(o) => unsafe {
                (list(o.non_donatable_input_indices, o.num_non_donatable_input_indices), o.context)
            },
            None => (&[], std::ptr::null_mut()),
        };
        // SAFETY: null or a context that this plugin returned.
        let user_data = unsafe { context.cast::<Arc<FfiUserData>>().as_ref() }.cloned().unwrap_or_default();
        // SAFETY: same contract as this function.
        let arrays = unsafe { ExecuteCall(self).arrays(program, kept)? };
        let given = |i: usize| {
            let gives = program.gives(i, kept);
            arrays.iter().map(|own| own[i].give(gives)).collect::<Result<Vec<_>, _>>()
        };
        let given = (0..self.num_args).map(given).collect::<Result<DeviceArgs, _>>()?;
        let (shares, end) = if program.is_later(&given) {
            let (held, end) = program.compute_later(user_data, given)?;
            (held.into_iter().enumerate().map(|(k, held)| program.shares(None, k, held)).collect(), end)
        } else {
            let made = program.compute(InterruptMark::now(), user_data, given)?;
            (program.contents(made), program.pace.end_of_run())
        };
        // The contents know when an asynchronous run is complete. SAFETY: same contract as this function.
        unsafe { ExecuteCall(self).hand_out(program, &devices, shares, &end) }
    }
}

impl ApiCall for sys::ExecuteContext_Create {
    unsafe fn handle(&mut self) -> CallResult {
        self.context = Box::into_raw(Box::<Arc<FfiUserData>>::default()).cast();
        Ok(())
    }
}

destroy! {
    ExecuteContext_Destroy: Arc<FfiUserData>, context;
}
