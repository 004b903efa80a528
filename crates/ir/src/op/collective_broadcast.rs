//! collective_broadcast: sends the array of each group's first device to the whole group.

use super::collective::{alone, emit, me, on_one, one};
use super::*;

impl OpRule for CollectiveBroadcast {
    lowered!(Exchange);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        let x = one(args)?;
        self.groups.check(["C1", "-"])?;
        Ok(smallvec![x])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], _: &ResultTypes) -> Result<Vec<Literal>> {
        alone(self, args)
    }

    /// Sums the cotangents of a group on its first device.
    fn vjp(&self, _: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero] };
        let g = dy.builder();
        let body = Monoid::Add.body(dy.dtype());
        let sum = emit(AllReduce { groups: self.groups.clone(), body }, dy);
        // As in text: groups over a channel contain partitions.
        let id: Op = if self.groups.channel > 0 { PartitionId.into() } else { ReplicaId.into() };
        let own = g.emit(id, &[]).remove(0);
        let mut senders = LiteralBuilder::new(TensorType::new(DType::U32, [self.groups.members.len()]));
        for (i, group) in self.groups.members.iter().enumerate() {
            senders.set(i, Scalar::Uint(group[0] as u64));
        }
        let sends = g.constant(senders.finish()).equal(&own).any(&[0]);
        vec![Grad::Of(sends.select(&sum, &sum.zeros_like()))]
    }

    fn attrs(&self) -> AttrList {
        self.groups.attrs()
    }
}

impl StructuralOp for CollectiveBroadcast {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        if s.has("has_dynamic_root") && s.flag("has_dynamic_root") != Ok(false) {
            return Err("a source device given as an operand is not supported".into());
        }
        Ok(CollectiveBroadcast { groups: ReplicaGroups::read(s)? })
    }

    fn samples() -> Vec<OpSample> {
        on_one(|_| CollectiveBroadcast { groups: me() }.into())
    }

    fn collective(&self) -> Option<&dyn Collective> {
        Some(self)
    }
}

impl Collective for CollectiveBroadcast {
    /// Devices in no group get zeros.
    fn together(&self, _: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>> {
        let mut all: Vec<Literal> = args.iter().map(|own| Literal::zeros(own[0].ty().clone())).collect();
        for group in &self.groups.members {
            let sent = ReplicaGroups::operands(group, args)?[0];
            group.iter().for_each(|&d| all[d] = sent.clone());
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, grad, interp};

    fn program(members: Vec<Vec<usize>>) -> Arc<Graph> {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F64, [2]), "x");
        let w = g.parameter(TensorType::new(DType::F64, [2]), "w");
        let y = emit(CollectiveBroadcast { groups: ReplicaGroups::of(members) }, &x);
        let dx = grad(&(&y * &w).sum_all(), &[&x]).remove(0);
        g.finish(&[y, dx]).unwrap()
    }

    fn run(graph: &Graph, n: usize) -> Result<Vec<Vec<Vec<f64>>>> {
        let array = |k: usize, v: f64| Literal::from_slice([2], &[v + k as f64, v - k as f64]).unwrap();
        let args: Vec<[Literal; 2]> = (0..n).map(|k| [array(k, 1.0), array(k, 10.0)]).collect();
        let args: Vec<Vec<&Literal>> = args.iter().map(|own| own.iter().collect()).collect();
        let out = interp::run_devices(graph, DeviceCounts::replicas(n), &args)?;
        Ok(out.iter().map(|own| own.iter().map(|l| l.to_f64s()).collect()).collect())
    }

    #[test]
    fn the_first_of_a_group_sends_and_gets_the_gradients() {
        let out = run(&program(vec![vec![1, 0], vec![2, 3]]), 4).unwrap();
        let values: Vec<_> = out.iter().map(|own| own[0].clone()).collect();
        assert_eq!(values, [[2.0, 0.0], [2.0, 0.0], [3.0, -1.0], [3.0, -1.0]]);
        let gradients: Vec<_> = out.iter().map(|own| own[1].clone()).collect();
        assert_eq!(gradients, [[0.0, 0.0], [21.0, 19.0], [25.0, 15.0], [0.0, 0.0]]);
    }

    #[test]
    fn devices_of_no_group_get_zeros_and_missing_ones_are_an_error() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::F64, [2]), "x");
        let y = emit(CollectiveBroadcast { groups: ReplicaGroups::of(vec![vec![1, 2]]) }, &x);
        let graph = g.finish(&[y]).unwrap();
        let array = |k: usize| Literal::from_slice([2], &[k as f64; 2]).unwrap();
        let args: Vec<Literal> = (1..4).map(array).collect();
        let args: Vec<Vec<&Literal>> = args.iter().map(|x| vec![x]).collect();
        let out = interp::run_devices(&graph, DeviceCounts::replicas(3), &args).unwrap();
        let out: Vec<Vec<f64>> = out.iter().map(|own| own[0].to_f64s()).collect();
        assert_eq!(out, [[0.0; 2], [2.0; 2], [2.0; 2]]);
        let e = interp::run_devices(&graph, DeviceCounts::replicas(2), &args[..2]).unwrap_err();
        assert!(e.to_string().contains("[1, 2]"), "{e}");
    }

    #[test]
    fn violations_name_their_constraint() {
        let x = TensorType::new(DType::F32, [2]);
        let infer = |members: Vec<Vec<usize>>, args: &[&TensorType]| {
            CollectiveBroadcast { groups: ReplicaGroups::of(members) }.infer(args).unwrap_err().label
        };
        assert_eq!(infer(vec![vec![0]], &[]), "-");
        assert_eq!(infer(vec![vec![0, 0]], &[&x]), "C1");
        assert_eq!(infer(vec![vec![0], vec![0]], &[&x]), "C1");
    }
}
