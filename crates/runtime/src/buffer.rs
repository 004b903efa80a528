//! Arrays on devices.

use crate::ReadyEvent;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use systole_ir::{DType, Literal, Result, TensorType};

/// A backend's storage of one array.
pub trait DeviceData: Any + Send + Sync {
    /// A host copy.
    fn to_literal(&self, ty: &TensorType) -> Result<Literal>;

    /// The array itself where it is on the host, and on no device.
    fn host(&self) -> Option<Literal> {
        None
    }

    /// The run that makes the array, where runs go on after their calls have returned.
    fn ready_event(&self) -> Option<ReadyEvent> {
        None
    }

    /// What the array is made of, where that is known: see [`Buffer::lazy_of`].
    fn origin(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// An array on a device (or on the host, until a run brings it to one). Clones share the storage; the last owner may
/// donate it.
#[derive(Clone)]
pub struct Buffer {
    ty: TensorType,
    data: Arc<dyn DeviceData>,
}

impl Buffer {
    /// Wraps a backend's storage.
    pub fn new(ty: TensorType, data: Arc<dyn DeviceData>) -> Buffer {
        Buffer { ty, data }
    }

    /// A rank-0 array.
    pub fn scalar(dtype: DType, value: f64) -> Buffer {
        Literal::scalar(dtype, value).into()
    }

    /// A host array that is made when something first reads it: until then it takes no memory.
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

    /// As [`Buffer::lazy`], of something that stays at hand: [`Buffer::origin`].
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

    /// What the array is made of, where it was given by [`Buffer::lazy_of`] and is of this type.
    pub fn origin<O: Any + Send + Sync>(&self) -> Option<Arc<O>> {
        self.data.origin()?.downcast().ok()
    }

    /// The array where it is on the host, and on no device.
    pub fn host(&self) -> Option<Literal> {
        self.data.host()
    }

    /// The run that makes the array, where runs go on after their calls have returned; `None`: nothing is under way.
    /// It can still be waited for when the array was given away.
    pub fn ready_event(&self) -> Option<ReadyEvent> {
        self.data.ready_event()
    }

    /// Waits until the run that makes the array is finished, as JAX's function of that name does.
    ///
    /// # Errors
    /// Why that run failed.
    pub fn block_until_ready(&self) -> Result<()> {
        self.ready_event().map_or(Ok(()), |event| event.wait().map(drop))
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// A host copy.
    pub fn to_literal(&self) -> Result<Literal> {
        self.data.to_literal(&self.ty)
    }

    /// The single element, as f64. Errors when it cannot be fetched; NaN when there is none.
    pub fn to_f64(&self) -> Result<f64> {
        Ok(self.to_literal()?.to_f64s().first().copied().unwrap_or(f64::NAN))
    }

    /// True when no clone shares the storage: then it may be donated.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.data) == 1
    }

    /// Which storage it is, without keeping it: the same as long as somebody has the array.
    pub fn storage(&self) -> Weak<dyn DeviceData> {
        Arc::downgrade(&self.data)
    }

    /// The storage, when it is of type `T`.
    pub fn data<T: DeviceData>(&self) -> Option<&T> {
        let any: &dyn Any = &*self.data;
        any.downcast_ref()
    }

    /// The storage for writing, when it is of type `T` and not shared.
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
}

/// See [`Buffer::lazy`].
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

/// See [`Buffer::lazy_of`].
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

impl From<Literal> for Buffer {
    /// A host array; each run that uses it brings it to its device.
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
