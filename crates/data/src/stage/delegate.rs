//! Methods of a pipeline stage or cursor that only call those of its input.

/// Implements methods of a stage or cursor by those of the field `up`, its only input.
macro_rules! delegate {
    // A number of the cursor's own, and the input's position.
    (position $number:ident) => {
        fn save(&self) -> $crate::pipeline::IteratorState {
            $crate::pipeline::IteratorState::at([self.$number]).over(self.up.save())
        }

        fn restore(&mut self, state: &$crate::pipeline::IteratorState) -> systole_base::Result<()> {
            self.$number = state.number(0)?;
            self.up.restore(state.above(0)?)
        }
    };
    ($($method:ident),*) => {
        $($crate::stage::delegate::delegate!(@$method);)*
    };
    (@inputs) => {
        fn inputs(&self) -> Vec<$crate::pipeline::StageNode> {
            vec![self.up.clone()]
        }
    };
    // An unknown number of the input's elements.
    (@fewer) => {
        fn cardinality(&self) -> $crate::pipeline::Cardinality {
            self.up.cardinality().unknown_unless_empty()
        }
    };
    (@spec) => {
        fn spec(&self) -> systole_base::Result<$crate::sample::ElementSpec> {
            self.up.spec()
        }
    };
    (@len) => {
        fn len(&self) -> Option<u64> {
            self.up.len()
        }
    };
    (@position) => {
        fn save(&self) -> $crate::pipeline::IteratorState {
            self.up.save()
        }

        fn restore(&mut self, state: &$crate::pipeline::IteratorState) -> systole_base::Result<()> {
            self.up.restore(state)
        }
    };
}

/// Implements a cursor's position as its number of elements, `taken`; restoring computes them again.
macro_rules! replayed_position {
    () => {
        fn save(&self) -> $crate::pipeline::IteratorState {
            $crate::pipeline::IteratorState::at([self.taken])
        }

        fn restore(&mut self, state: &$crate::pipeline::IteratorState) -> systole_base::Result<()> {
            $crate::pipeline::replay(self, state)
        }
    };
}

pub(super) use {delegate, replayed_position};
