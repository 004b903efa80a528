//! SelectStep layer: selects one step of a sequence, `x[:, index]`. SliceSteps layer: a range of steps, `x[:, start:end]`.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, S, …] → T[B, …]`: selects a step of each sequence by its index. Keras's `x[:, index]`.
    ///
    /// It also selects the states that a recurrent layer with `return_state` appends to its outputs.
    pub struct SelectStep {
        /// Index of the step; negative ones count from the end. Default: −1, the last step.
        pub index: i64 = -1,
    }
}

arguments! {
    /// `x: T[B, S, …] → T[B, S', …]`: selects a range of steps of each sequence, with their mask. Keras's `x[:, start:end]`.
    pub struct SliceSteps {
        /// Index of the first step; negative ones count from the end. Default: 0.
        pub start: i64 = 0,
        /// Index after the last step; negative ones count from the end. Default: S.
        pub end: Option<i64> = None,
        /// Whether the selected steps are returned in reverse order. Default: false.
        pub reverse: bool = false,
    }
}

impl Arguments for SliceSteps {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let steps = x.shape().get(1).copied().unwrap_or(0);
        let place = |i: i64| usize::try_from(if i < 0 { i.saturating_add_unsigned(steps as u64) } else { i });
        match (place(self.start), place(self.end.unwrap_or(steps as i64))) {
            (Ok(start), Ok(end)) if start < end && end <= steps => {
                let range = |t: &Tensor| {
                    let part = t.slice_dim(1, start, end);
                    if self.reverse { part.reverse(&[1]) } else { part }
                };
                let y = range(&cast_floats(cx, x));
                if let Some(mask) = cx.mask_of(x).filter(|mask| mask.rank() == 2) {
                    cx.set_mask(&y, &range(&mask));
                }
                Ok(y)
            }
            _ => {
                let range = format!("sequences [B, S, …] with steps {} to {:?}", self.start, self.end);
                Err(unfit("SliceSteps", &range, x.ty()).hint("choose a start below the end, at most S"))
            }
        }
    }
}

impl Layer for SliceSteps {
    named!("SliceSteps", one_input);
}

impl Arguments for SelectStep {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let steps = x.shape().get(1).copied().unwrap_or(0);
        let index =
            if self.index < 0 { self.index.saturating_add_unsigned(steps as u64) } else { self.index };
        match usize::try_from(index) {
            Ok(at) if at < steps => {
                let rest = [&x.shape()[..1], &x.shape()[2..]].concat();
                Ok(cast_floats(cx, x).slice_dim(1, at, at + 1).reshape(rest))
            }
            _ => Err(unfit("SelectStep", &format!("sequences [B, S, …] with a step {}", self.index), x.ty())
                .hint("choose an index from −S to S − 1")),
        }
    }
}

impl Layer for SelectStep {
    named!("SelectStep", one_input);
}

constructors!(LayerSpec:
    /// `x: T[B, S, …] → T[B, …]`: selects a step of each sequence. Arguments: [`SelectStep`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::{lstm, select_step}, Model};
    /// let layers = [lstm(4).return_state(true), select_step(-1)];
    /// let cell_state = Model::sequential(layers).output_for(&[TensorType::new(F32, [7, 3])])?;
    /// assert_eq!(cell_state.shape.dims(), [4]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn select_step(index: i64) = SelectStep { index };

    /// `x: T[B, S, …] → T[B, S', …]`: selects steps of each sequence from `start` on. Arguments: [`SliceSteps`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::slice_steps, Model};
    /// let output = Model::sequential([slice_steps(1).end(-2)]).output_for(&[TensorType::new(F32, [7, 3])])?;
    /// assert_eq!(output.shape.dims(), [4, 3]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn slice_steps(start: i64) = SliceSteps { start, ..Default::default() };
);

setters!(LayerSpec:
    /// Index after the last step of SliceSteps; negative ones count from the end.
    end: i64 as i64;
    /// Whether SliceSteps returns its steps in reverse order.
    reverse: bool as bool;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(select_step(-1), SEQUENCE, &[2, 4], &[], Some(&[2])),
        LayerSample::new(select_step(2), IMAGE, &[2, 5, 3], &[], Some(&[2, 2, 5, 3])),
        LayerSample::new(slice_steps(-3), SEQUENCE, &[2, 3, 4], &[], Some(&[2, 2, 4])),
        LayerSample::new(
            slice_steps(0).end(-2).reverse(true),
            IMAGE,
            &[2, 4, 5, 3],
            &[],
            Some(&[2, 2, 5, 3]),
        ),
    ]
}

/// Not a layer in Keras.
pub(in crate::layers) const PARITY: &str = "[]";
