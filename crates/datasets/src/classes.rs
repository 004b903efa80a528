//! Translates the class labels of a dataset to a model's class indices, by class name.

use super::{PrepareFn, TrainingData};
use std::sync::Arc;
use systole_base::{DType, Result, err};
use systole_data::{Dataset, HostArray, Sample};

impl TrainingData {
    /// Returns the same elements with labels that index into `names`. `names` may contain more classes. Numbers are
    /// equal if their values are: `1`, `01`, `1.0`.
    ///
    /// # Errors
    /// If the data has classes that are not in `names`; names each of them.
    pub fn with_classes(mut self, names: &[String]) -> Result<TrainingData> {
        let number = |name: &String| name.parse::<f64>().ok().filter(|number| number.is_finite());
        let place = |class: &String| {
            let exactly = names.iter().position(|name| name == class);
            let value =
                || number(class).and_then(|of| names.iter().position(|name| number(name) == Some(of)));
            exactly.or_else(value)
        };
        let others: Vec<&str> =
            self.class_names.iter().filter(|c| place(c).is_none()).map(String::as_str).collect();
        if !others.is_empty() {
            return Err(err!(Data, "`{}` has unknown classes: `{}`", self.name, others.join("`, `"))
                .because(format!("the model's classes are `{}`", names.join("`, `"))));
        }
        let table: Arc<[usize]> = self.class_names.iter().filter_map(place).collect();
        let same_numbers = table.iter().enumerate().all(|(was, is)| was == *is);
        self.class_names = names.to_vec();
        if same_numbers {
            return Ok(self);
        }
        let renumber = move |s: Sample| -> Result<Sample> {
            let was = s.get("label")?.get(0).as_i64();
            let is = usize::try_from(was).ok().and_then(|was| table.get(was));
            let is = is.ok_or_else(|| err!(Data, "label {was} has no class name"))?;
            Ok(s.with("label", HostArray::scalar(DType::I32, *is as f64)))
        };
        let all = |elements: &Dataset| elements.map(renumber.clone());
        (self.train, self.test) = (all(&self.train), all(&self.test));
        if let Some(streamed) = &mut self.streamed {
            let prepare = streamed.prepare.clone();
            streamed.prepare = PrepareFn(Arc::new(move |s| renumber(prepare.call(s)?)));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ImageArrays, ImageDataset};
    use systole_base::{Literal, TensorType};

    fn data(classes: &[&str], labels: &[i32]) -> TrainingData {
        let images = Literal::zeros(TensorType::new(DType::U8, [labels.len(), 1, 1, 1]));
        let arrays = ImageArrays { images, labels: Literal::from_slice([labels.len()], labels).unwrap() };
        ImageDataset::new("pets", String::new(), classes, arrays.clone(), arrays).unwrap().into()
    }

    #[test]
    fn labels_follow_the_names_of_classes() {
        let known = ["ant", "cat", "dog"].map(String::from);
        let labels = |d: &Dataset| {
            d.iter().map(|s| s.unwrap().get("label").unwrap().get(0).as_i64()).collect::<Vec<_>>()
        };
        let mapped = data(&["dog", "cat"], &[0, 1, 1, 0]).with_classes(&known).unwrap();
        assert_eq!((labels(&mapped.train), labels(&mapped.test)), (vec![2, 1, 1, 2], vec![2, 1, 1, 2]));
        assert_eq!(mapped.class_names, known);
        let mapped = data(&["1", "0"], &[0, 1]).with_classes(&["00", "01"].map(String::from)).unwrap();
        assert_eq!(labels(&mapped.train), [1, 0], "numbers are compared by value");
        let e = data(&["cat", "fox", "wolf"], &[0]).with_classes(&known).unwrap_err().to_string();
        assert!(e.contains("`fox`, `wolf`") && e.contains("`ant`, `cat`, `dog`"), "{e}");
    }
}
