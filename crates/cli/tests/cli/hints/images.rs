//! Hints about folders of images.

use super::{Case, case, row, tried};
use crate::program::Folder;
use crate::program::made::{album, picture};
use std::fs;
use systole_data::format::npy;
use systole_ir::Literal;

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = Folder::new("hints-albums");
    album(&f, "album", 6);
    let small = "--set=layers.0.filters=2 --set=layers.4.filters=2 --set=layers.8.filters=2";
    f.write("deeper/pets/cat/1.png", picture(20, 1, None));
    f.write("deeper/pets/dog/1.png", picture(90, 2, None));
    f.write("deeper/pets/dog/2.png", picture(90, 3, None));
    f.write("deeper/pets/cat/2.png", picture(20, 4, None));
    f.write("x.png", picture(20, 1, None));
    album(&f, "cut", 5);
    for i in 0..3 {
        f.write(&format!("cut/cat/{i}.png"), &picture(20, i, None)[..40]);
    }
    album(&f, "loose", 0);
    f.write("loose/1.png", picture(20, 1, None));
    let floats = Literal::from_slice([16, 16, 3], &[0.5f32; 16 * 16 * 3]).unwrap();
    f.write("floats.npy", npy::to_bytes(&floats).unwrap());
    f.write("labels-idx1-ubyte", [0, 0, 8, 1, 0, 0, 0, 2, 0, 1]);
    // An IDX file of no images.
    f.write("empty-idx3-ubyte", [0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 18, 0, 0, 0, 18]);
    f.run(&[
        "train",
        "album",
        "--out=run",
        "--epochs=1",
        "--threads=1",
        "--quiet",
        "--set=layers.0.filters=2",
    ])
    .ok();
    let images = |target: &str| tried(target, small);
    let cases = vec![
        images("cut"),
        images("loose").hand(|f| album(f, "loose", 4)),
        tried("album", &format!("{small} --set=data.augment=[\"random_flp\"]")),
        tried("album", &format!("{small} --set=data.augment=[\"flip=3\"]")),
        tried("album", &format!("{small} --set=data.augment=[\"max_rotate=900\"]")),
        tried(
            "album",
            &format!("{small} --set=data.augment=[\"saturation\"] --set=data.color_mode=grayscale"),
        ),
        tried("album", &format!("{small} '--set=fit.class_weight={{ ct = 2.0 }}'")),
        row("predict run labels-idx1-ubyte", "predict run `x.png`"),
        row("evaluate run --dataset cifar10", "evaluate run"),
        row("predict run empty-idx3-ubyte", "predict run `x.png`"),
        {
            let biggan = "train biggan --out=out --epochs=1 --steps-per-epoch=1 --batch-size=4 --data-dir=album --set \
                          data.dataset=folder --set biggan.G_ch=2 --set biggan.D_ch=2";
            row(biggan, &format!("{biggan} --set data.image_size=[32,32] --set data.color_mode=rgb"))
        },
        row("predict run floats.npy --invert", "predict run floats.npy"),
        tried("album", &format!("{small} --set=data.augment=[\"random_flip=3\"]")),
        tried(
            "album",
            &format!("{small} --set=data.augment=[\"random_hue\"] --set=data.color_mode=grayscale"),
        ),
        tried("folder", small)
            .typed(&format!("train folder --data-dir album --out=out --epochs=1 {small}"))
            .own("album"),
        tried("folder", &format!("{small} --data-dir x.png"))
            .typed(&format!("train folder --data-dir album --out=out --epochs=1 {small}"))
            .own("album"),
        case("train mnist --out=out --epochs=1 --data-dir nowhere")
            .own("--print-config")
            .typed("train glyphs --out=out --epochs=1 --print-config"),
        tried("deeper", small).hand(|f| {
            fs::rename(f.path("deeper/pets/cat"), f.path("deeper/cat")).unwrap();
        }),
    ];
    (f, cases)
}
