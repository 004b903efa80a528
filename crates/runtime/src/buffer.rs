//! Device arrays ([`Buffer`]) and the storage trait that backends implement ([`DeviceData`]).

use crate::ReadyEvent;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use systole_ir::{DType, ForeignMemory, Literal, Result, TensorType};

/// Backend-specific storage of one array: implemented by each backend.
pub trait DeviceData: Any + Send + Sync {
    /// Copies the array to the host.
    fn to_literal(&self, ty: &TensorType) -> Result<Literal>;

    /// Returns the array if it is in host memory and on no device.
    fn host(&self) -> Option<Literal> {
        None
    }

    /// Returns the row-major elements if the storage holds them in host memory. Their address does not change while
    /// the storage is shared.
    fn bytes(&self, _ty: &TensorType) -> Option<&[u8]> {
        None
    }

    /// Completion event of the run that computes the array, if runs are asynchronous.
    fn ready_event(&self) -> Option<ReadyEvent> {
        None
    }

    /// Returns the object from which the array is computed, if known: see [`Buffer::lazy_of`].
    fn origin(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// An array on a device, or on the host until a run transfers it. Clones share the storage; the last owner may donate
/// it.
#[derive(Clone)]
pub struct Buffer {
    ty: TensorType,
    data: Arc<dyn DeviceData>,
}

impl Buffer {
    /// Creates a buffer from a backend's storage.
    pub fn new(ty: TensorType, data: Arc<dyn DeviceData>) -> Buffer {
        Buffer { ty, data }
    }

    /// Creates a rank-0 array on the host.
    pub fn scalar(dtype: DType, value: f64) -> Buffer {
        Literal::scalar(dtype, value).into()
    }

    /// Creates a host array that is computed when it is first read; until then it uses no memory.
    ///
    /// ```
    /// use systole_runtime::Buffer;
    /// use systole_ir::{DType::F32, Literal, TensorType};
    /// let x = Buffer::lazy(TensorType::scalar(F32), || Literal::scalar(F32, 3.0));
    /// assert_eq!(x.to_f64()?, 3.0);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn lazy(ty: TensorType, make: impl Fn() -> Literal + Send + Sync + 'static) -> Buffer {
        Buffer { ty, data: Arc::new(LazyLiteral { make, made: OnceLock::new() }) }
    }

    /// Creates a lazy array computed from `origin`, which stays accessible through [`Buffer::origin`]. See
    /// [`Buffer::lazy`].
    ///
    /// ```
    /// use systole_runtime::Buffer;
    /// use systole_ir::{DType::F32, Literal, TensorType};
    /// use std::sync::Arc;
    /// let x = Buffer::lazy_of(TensorType::scalar(F32), Arc::new(3i8), |q| Literal::scalar(F32, f64::from(*q)));
    /// assert_eq!((x.to_f64()?, x.origin::<i8>().as_deref()), (3.0, Some(&3)));
    /// assert!(x.origin::<u8>().is_none());
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn lazy_of<O: Any + Send + Sync>(
        ty: TensorType,
        origin: Arc<O>,
        make: impl Fn(&O) -> Literal + Send + Sync + 'static,
    ) -> Buffer {
        let of = origin.clone();
        let lazy = LazyLiteral { make: move || make(&of), made: OnceLock::new() };
        Buffer { ty, data: Arc::new(LazyWithOrigin { lazy, origin }) }
    }

    /// Returns the object from which [`Buffer::lazy_of`] computes the array, if it has type `O`.
    pub fn origin<O: Any + Send + Sync>(&self) -> Option<Arc<O>> {
        self.data.origin()?.downcast().ok()
    }

    /// Returns the array if it is in host memory and on no device.
    pub fn host(&self) -> Option<Literal> {
        self.data.host()
    }

    /// Returns the row-major elements if the storage holds them in host memory; clones have the same address.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.data.bytes(&self.ty)
    }

    /// Completion event of the run that computes the array; `None` if no asynchronous run is pending. It remains valid
    /// after the array is donated.
    pub fn ready_event(&self) -> Option<ReadyEvent> {
        self.data.ready_event()
    }

    /// Waits until the array is computed, like JAX's `block_until_ready`.
    ///
    /// # Errors
    /// The error of the failed run.
    pub fn block_until_ready(&self) -> Result<()> {
        self.ready_event().map_or(Ok(()), |event| event.wait().map(drop))
    }

    /// Element type and shape of the array.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Copies the array from the device to the host.
    pub fn to_literal(&self) -> Result<Literal> {
        self.data.to_literal(&self.ty)
    }

    /// Returns the array on the host without a copy, if it is in host memory; otherwise a copy. While the result exists,
    /// runs cannot update the array in place.
    ///
    /// ```
    /// use systole_ir::Literal;
    /// use systole_runtime::Buffer;
    /// let x = Buffer::from(Literal::from_slice([2], &[1f32, 2.0])?);
    /// assert_eq!(x.shared_literal()?.to_f32s(), [1.0, 2.0]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the transfer fails.
    pub fn shared_literal(&self) -> Result<Literal> {
        if let Some(host) = self.host() {
            return Ok(host);
        }
        let shared = || Literal::from_foreign(self.ty.clone(), Arc::new(SharedBuffer(self.clone())));
        self.bytes().and_then(|_| shared()).map_or_else(|| self.to_literal(), Ok)
    }

    /// Returns the single element as f64; NaN if the array is empty. Errors if the transfer fails.
    pub fn to_f64(&self) -> Result<f64> {
        Ok(self.to_literal()?.to_f64s().first().copied().unwrap_or(f64::NAN))
    }

    /// Whether no clone shares the storage, so that it may be donated.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.data) == 1
    }

    /// Weak reference to the storage: identifies it without keeping it alive.
    pub fn storage(&self) -> Weak<dyn DeviceData> {
        Arc::downgrade(&self.data)
    }

    /// Returns the storage if it has type `T`.
    pub fn data<T: DeviceData>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.data;
        any.downcast_ref()
    }

    /// Returns the storage mutably if it has type `T` and is not shared.
    pub fn data_mut<T: DeviceData>(&mut self) -> Option<&mut T> {
        let any: &mut dyn Any = Arc::get_mut(&mut self.data)?;
        any.downcast_mut()
    }
}

impl DeviceData for Literal {
    fn to_literal(&self, _: &TensorType) -> Result<Literal> {
        Ok(self.clone())
    }

    fn host(&self) -> Option<Literal> {
        Some(self.clone())
    }

    fn bytes(&self, _: &TensorType) -> Option<&[u8]> {
        Some(Literal::bytes(self))
    }
}

/// Storage of [`Buffer::lazy`].
struct LazyLiteral<F> {
    make: F,
    made: OnceLock<Literal>,
}

impl<F: Fn() -> Literal + Send + Sync + 'static> DeviceData for LazyLiteral<F> {
    fn to_literal(&self, _: &TensorType) -> Result<Literal> {
        Ok(self.made.get_or_init(&self.make).clone())
    }

    fn host(&self) -> Option<Literal> {
        Some(self.made.get_or_init(&self.make).clone())
    }
}

/// Storage of [`Buffer::lazy_of`].
struct LazyWithOrigin<F, O> {
    lazy: LazyLiteral<F>,
    origin: Arc<O>,
}

impl<F: Fn() -> Literal + Send + Sync + 'static, O: Any + Send + Sync> DeviceData for LazyWithOrigin<F, O> {
    fn to_literal(&self, ty: &TensorType) -> Result<Literal> {
        self.lazy.to_literal(ty)
    }

    fn host(&self) -> Option<Literal> {
        self.lazy.host()
    }

    fn origin(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.origin.clone())
    }
}

/// An array in host memory, read as a [`Literal`].
struct SharedBuffer(Buffer);

impl ForeignMemory for SharedBuffer {
    fn bytes(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

impl From<Literal> for Buffer {
    /// Wraps a host array; each run that uses it transfers it to its device.
    fn from(value: Literal) -> Buffer {
        Buffer { ty: value.ty().clone(), data: Arc::new(value) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_literal() {
            Ok(value) => value.fmt(f),
            Err(_) => write!(f, "{} (not readable)", self.ty),
        }
    }
}
