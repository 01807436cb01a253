#!/usr/bin/env python3
"""Writes tests/data/pictures: picture files of every kind that is read, each with the pixels that Pillow makes of it (a
.ppm beside it), resampled pictures, and what transformers' image processors make of pictures of odd sizes.

Usage: make.py (in an environment with pillow before 13, which resamples some pictures vertically first; numpy, torch,
torchvision and transformers)
"""
import io
import json
import pathlib
import struct
import zlib

import numpy
from PIL import Image, ImageOps

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/data/pictures"


def formula(width, height):
    """The picture that tests make, too: every pixel from its place, no two rows alike."""
    y, x, c = numpy.mgrid[0:height, 0:width, 0:3]
    return ((x * 7 + y * 13 + c * 29 + x * y % 251) & 255).astype(numpy.uint8)


def smooth(width, height):
    y, x = numpy.mgrid[0:height, 0:width]
    red, green = x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1)
    return numpy.stack([red, green, 255 - (red + green) // 2], axis=-1).astype(numpy.uint8)


def seen(file):
    """The pixels as Pillow shows them: turned, transparent parts on white."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    if image.mode.startswith("I;16"):
        return Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8)).convert("RGB")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")
    return image.convert("RGB")


def save(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, colour, rows):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = b"".join(b"\0" + row for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def interlaced(pixels):
    """Adam7, which Pillow reads and does not write. pixels: [height, width, channels], RGB or RGBA."""
    height, width, channels = pixels.shape
    data = b""
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = pixels[y0::dy, x0::dx]
        if part.size:
            data += b"".join(b"\0" + row.tobytes() for row in part)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def files():
    colours, plain = Image.fromarray(smooth(21, 14)), Image.fromarray(formula(11, 7))
    alpha = numpy.dstack([formula(11, 7), formula(11, 7)[..., 0]])
    grey = plain.convert("L")
    yield "baseline.jpg", save(colours, "JPEG", quality=90)
    yield "full_colour.jpg", save(colours, "JPEG", quality=95, subsampling=0)
    yield "progressive.jpg", save(colours, "JPEG", quality=90, progressive=True)
    yield "grey.jpg", save(colours.convert("L"), "JPEG", quality=90)
    yield "inks.jpg", save(colours.convert("CMYK"), "JPEG", quality=95)
    for value in range(1, 9):
        yield f"turned{value}.jpg", save(colours, "JPEG", quality=90, exif=orientation(value))
    yield "colour.png", save(plain, "PNG")
    yield "turned6.png", save(plain, "PNG", exif=orientation(6))
    yield "alpha.png", save(Image.fromarray(alpha), "PNG")
    yield "grey.png", save(grey, "PNG")
    yield "grey_alpha.png", save(Image.fromarray(alpha).convert("LA"), "PNG")
    yield "bits.png", save(grey.convert("1"), "PNG")
    yield "palette.png", save(plain.quantize(16), "PNG")
    yield "palette_alpha.png", save(Image.fromarray(alpha).quantize(16), "PNG")
    yield "palette_clear.png", save(plain.quantize(16), "PNG", transparency=3)
    yield "colour_clear.png", save(plain, "PNG", transparency=tuple(int(v) for v in formula(11, 7)[2, 3]))
    deep = numpy.arange(9 * 5 * 3, dtype=numpy.uint32).reshape(5, 9, 3) * 487 % 65536
    yield "deep.png", png(9, 5, 16, 2, [row.astype(">u2").tobytes() for row in deep])
    yield "deep_grey.png", png(9, 5, 16, 0, [row[:, 0].astype(">u2").tobytes() for row in deep])
    yield "interlaced.png", interlaced(formula(11, 7))
    yield "interlaced_alpha.png", interlaced(alpha)
    yield "lossy.webp", save(colours, "WEBP", quality=80)
    yield "lossless.webp", save(plain, "WEBP", lossless=True)
    yield "alpha.webp", save(Image.fromarray(alpha), "WEBP", lossless=True, exact=True)
    yield "lossy_alpha.webp", save(Image.fromarray(numpy.dstack([smooth(11, 7), formula(11, 7)[..., 0]])), "WEBP", quality=80)
    yield "turned8.webp", save(plain, "WEBP", lossless=True, exif=orientation(8))


def not_read():
    moving = [Image.fromarray(formula(5, 4)), Image.fromarray(smooth(5, 4))]
    yield "still.gif", save(moving[0], "GIF")
    yield "moving.webp", save(moving[0], "WEBP", save_all=True, append_images=moving[1:], lossless=True)
    bomb = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    packer, data = zlib.compressobj(9), b""
    for _ in range(60):
        data += packer.compress(bytes(180001))
    data += packer.flush()
    yield "bomb.png", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bomb) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS}


def resampled():
    sizes = [(37, 23, 20, 11), (37, 23, 37, 9), (37, 23, 10, 23), (8, 5, 41, 33), (300, 7, 13, 13), (5, 200, 9, 31),
             (1, 1, 7, 3), (64, 48, 64, 48), (301, 199, 28, 28), (2, 3, 448, 2)]
    for width, height, to_width, to_height in sizes:
        for name, number in FILTERS.items():
            pixels = Image.fromarray(formula(width, height)).resize((to_width, to_height), number)
            yield {"from": [width, height], "to": [to_width, to_height], "filter": name, "adler": f"{zlib.adler32(pixels.tobytes()):08x}"}


def processors():
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    half = [0.5, 0.5, 0.5]
    limits = {"qwen3vl_merger": {"shortest_edge": 65536, "longest_edge": 16777216},
              "qwen2.5vl_merger": {"shortest_edge": 3136, "longest_edge": 12845056}}
    yield "qwen3vl_merger", Qwen2VLImageProcessorPil(patch_size=16, size=limits["qwen3vl_merger"], image_mean=half, image_std=half), {}
    yield "qwen2.5vl_merger", Qwen2VLImageProcessorPil(patch_size=14, size=limits["qwen2.5vl_merger"]), {}
    yield "gemma3", Gemma3ImageProcessorPil(size={"height": 896, "width": 896}, image_mean=half, image_std=half), {}
    yield "gemma4v", Gemma4ImageProcessorPil(), {}
    yield "pixtral", PixtralImageProcessorPil(patch_size={"height": 14, "width": 14}, size={"longest_edge": 1540}), {"patch_size": {"height": 28, "width": 28}}


def in_cells(levels, patch, merge):
    """[3, height, width] to patches in the order of src/vision: the merge x merge patches of a token together."""
    _, height, width = levels.shape
    split = levels.reshape(3, height // patch // merge, merge, patch, width // patch // merge, merge, patch)
    return split.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * patch * patch)


SIZES = [(37, 23), (2, 2), (16, 16), (640, 480), (481, 641), (31, 400), (400, 31), (255, 257), (97, 301), (48, 80),
         (123, 45), (336, 335), (56, 56), (300, 300), (720, 405), (333, 777), (199, 5), (5, 199), (513, 511), (800, 601)]


def patches(name, processor, options, width, height):
    made = processor(images=Image.fromarray(formula(width, height)), return_tensors="np", **options)
    values = numpy.asarray(made["pixel_values"], dtype=numpy.float64)
    if name.startswith("qwen"):
        patch, merge = processor.patch_size, 2
        values = values.reshape(-1, 3, 2, patch * patch)[:, :, 0, :]  # the two frames of a still picture are one
        _, rows, cols = (int(v) for v in made["image_grid_thw"][0])
        levels = values * numpy.asarray(processor.image_std).reshape(1, 3, 1) + numpy.asarray(processor.image_mean).reshape(1, 3, 1)
        levels = levels.reshape(rows * cols, -1)
    elif name == "gemma4v":
        patch, merge = 16, 3
        places = made["image_position_ids"][0]
        used = places[:, 0] >= 0
        cols, rows = (int(v) + 1 for v in places[used].max(axis=0))
        whole = values[0][used].reshape(rows, cols, patch, patch, 3)
        levels = in_cells(whole.transpose(4, 0, 2, 1, 3).reshape(3, rows * patch, cols * patch), patch, merge)
    else:
        patch, merge = 14, 4 if name == "gemma3" else 2
        whole = values[0] * numpy.asarray(processor.image_std).reshape(3, 1, 1) + numpy.asarray(processor.image_mean).reshape(3, 1, 1)
        if name == "pixtral":
            whole = whole[:, :int(made["image_sizes"][0][0]), :int(made["image_sizes"][0][1])]
        rows, cols = whole.shape[1] // patch, whole.shape[2] // patch
        levels = in_cells(whole, patch, merge)
    scaled = levels * 255
    assert numpy.abs(scaled - scaled.round()).max() < 0.01
    data = scaled.round().astype(numpy.uint8).tobytes()
    return {"projector": name, "from": [width, height], "patches": [cols, rows], "adler": f"{zlib.adler32(data):08x}"}


IDEFICS3 = {"tile": 50, "patch": 12, "merge": 4, "longest": 200}  # a tile's last two rows and columns of pixels are in no patch
INTERNVL = {"tile": 56, "patch": 14, "merge": 2}
LARGE = [(1500, 700), (600, 1300)]  # for LFM2, whose tiles no key makes smaller


def in_patches(values, mean, deviation, patch, merge):
    """[3, height, width], normalized, to patches of bytes; what is no whole patch is left out."""
    levels = (numpy.asarray(values, numpy.float64) * numpy.reshape(deviation, (3, 1, 1)) + numpy.reshape(mean, (3, 1, 1))) * 255
    assert numpy.abs(levels - levels.round()).max() < 0.01
    rows, cols = levels.shape[1] // patch, levels.shape[2] // patch
    return rows, cols, in_cells(levels[:, :rows * patch, :cols * patch], patch, merge).round().astype(numpy.uint8).tobytes()


def internvl(image):
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    mean, deviation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    processor = GotOcr2ImageProcessorPil(size={"height": INTERNVL["tile"], "width": INTERNVL["tile"]}, crop_to_patches=True, image_mean=mean, image_std=deviation)
    for view in processor(images=image)["pixel_values"]:
        yield in_patches(view, mean, deviation, INTERNVL["patch"], INTERNVL["merge"])


def idefics3(image):
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    processor = Idefics3ImageProcessorPil(size={"longest_edge": IDEFICS3["longest"]}, max_image_size={"longest_edge": IDEFICS3["tile"]})
    for view in numpy.asarray(processor(images=image, return_tensors="np")["pixel_values"])[0]:
        yield in_patches(view, [0.5] * 3, [0.5] * 3, IDEFICS3["patch"], IDEFICS3["merge"])


def resized_by_pillow(_self, images, size, resample=None, **_more):
    """In the place of torchvision's resizing, from which it differs by one level at most."""
    import torch
    made = [Image.fromarray(image.permute(1, 2, 0).numpy()).resize((size.width, size.height), resample) for image in images]
    return torch.stack([torch.from_numpy(numpy.array(image)).permute(2, 0, 1) for image in made])


def lfm2_views(image):
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
    made = Lfm2VlImageProcessor()(images=image)
    for values, (rows, cols) in zip(made["pixel_values"], made["spatial_shapes"]):
        rows, cols = int(rows), int(cols)
        whole = values[:rows * cols].reshape(rows, cols, 16, 16, 3).permute(4, 0, 2, 1, 3).reshape(3, rows * 16, cols * 16)
        yield whole.numpy()


def lfm2(image):
    from transformers.image_processing_backends import TorchvisionBackend
    published, TorchvisionBackend.resize = TorchvisionBackend.resize, resized_by_pillow
    views = list(lfm2_views(image))
    TorchvisionBackend.resize = published
    for view, of_torch in zip(views, lfm2_views(image)):
        assert view.shape == of_torch.shape and numpy.abs(view - of_torch).max() * 255 / 2 < 1.01
        yield in_patches(view, [0.5] * 3, [0.5] * 3, 16, 2)


def glm4v(image):
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
    processor = Glm4vImageProcessorPil(size={"shortest_edge": 12544, "longest_edge": 9633792})
    made = processor(images=image, return_tensors="np")
    _, rows, cols = (int(v) for v in made["image_grid_thw"][0])
    values = made["pixel_values"].reshape(-1, 3, 2, 14 * 14)[:, :, 0].astype(numpy.float64)  # the two frames of a still picture are one
    levels = (values * numpy.reshape(processor.image_std, (3, 1)) + numpy.reshape(processor.image_mean, (3, 1))) * 255
    assert numpy.abs(levels - levels.round()).max() < 0.01
    yield rows, cols, levels.round().astype(numpy.uint8).tobytes()


def kimivl(image, most=4096, patch=14, merge=2):
    """By the description of Kimi-VL's processor, of which transformers has no class: what has too many patches is made smaller, then
    black edges make all tokens whole."""
    whole = (image.width // patch) * (image.height // patch)
    if whole > most:
        shrink = (most / whole) ** 0.5
        image = image.resize((int(image.width * shrink), int(image.height * shrink)), Image.Resampling.BICUBIC)
    side = patch * merge
    padded = Image.new("RGB", (-(-image.width // side) * side, -(-image.height // side) * side))
    padded.paste(image, (0, 0))
    yield in_patches(numpy.asarray(padded).transpose(2, 0, 1) / 255, [0] * 3, [1] * 3, patch, merge)


def views():
    """Of processors that make several of a picture, and of others of these families."""
    for name, processor in {"internvl": internvl, "idefics3": idefics3, "lfm2": lfm2, "glm4v": glm4v, "kimivl": kimivl}.items():
        for width, height in SIZES + (LARGE if name in ("lfm2", "kimivl") else []):
            made = list(processor(Image.fromarray(formula(width, height))))
            for number, (rows, cols, data) in enumerate(made):
                yield {"projector": name, "from": [width, height], "view": number, "views": len(made), "patches": [cols, rows],
                       "adler": f"{zlib.adler32(data):08x}"}


def cuts():
    """Tiles of large pictures, and the whole behind them, by the published functions alone."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
    internvl = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, crop_to_patches=True)
    idefics, lfm2 = Idefics3ImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}), Lfm2VlImageProcessor()
    for width, height in CUTS:
        cols, rows = get_optimal_tiled_canvas((height, width), (448, 448), internvl.min_patches, internvl.max_patches)
        yield {"projector": "internvl", "from": [width, height], "tiles": [cols, rows] if cols * rows > 1 else [0, 0], "whole": [448, 448]}
        _, rows, cols = idefics.get_number_of_image_patches(height, width, {})
        yield {"projector": "idefics3", "from": [width, height], "tiles": [cols, rows], "whole": [512, 512]}
        limits = {"downsample_factor": 2, "max_image_tokens": 256, "encoder_patch_size": 16}
        cols = rows = 0
        if lfm2._is_image_too_large(height, width, max_pixels_tolerance=2.0, **limits):
            cols, rows, *_ = lfm2._get_grid_layout(height, width, 2, 10, 512)
        yield {"projector": "lfm2", "from": [width, height], "tiles": [cols, rows],
               "whole": list(lfm2.smart_resize(height, width, min_image_tokens=64, **limits))}


CUTS = [(1920, 1080), (4032, 3024), (3840, 2160), (48, 80), (16, 16), (10000, 51), (51, 10000), (8000, 8000), (1, 1), (100, 20000), (1024, 512),
        (512, 512), (513, 512), (725, 724), (724, 724), (1170, 2532), (1000, 800), (1250, 1000), (896, 448), (897, 448), (2048, 1023), (640, 480)]


def sizes():
    """What the rules make of sizes, by the published functions alone."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize as glm_resize
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
    for width, height in [(1920, 1080), (4032, 3024), (3840, 2160), (48, 80), (16, 16), (144, 176), (10000, 51), (51, 10000),
                          (8000, 8000), (1, 1), (100, 20000), (4096, 4096), (4097, 4096), (256, 256), (255, 256), (1540, 1540),
                          (1541, 1540), (3000, 7), (7, 3000), (2000, 10), (28, 28), (1170, 2532)]:
        rules = {
            "qwen3vl_merger": lambda: smart_resize(height, width, 32, 65536, 16777216),
            "qwen2.5vl_merger": lambda: smart_resize(height, width, 28, 3136, 12845056),
            "glm4v": lambda: glm_resize(2, height, width, min_pixels=12544, max_pixels=9633792),
            "gemma4v": lambda: get_aspect_ratio_preserving_size(height, width, 16, 280 * 9, 3),
            "pixtral": lambda: get_resize_output_image_size(numpy.zeros((height, width, 3), numpy.uint8), (1540, 1540), (28, 28), "channels_last"),
        }
        for name, rule in rules.items():
            try:
                high, wide = rule()
                yield {"projector": name, "from": [width, height], "to": [int(wide), int(high)]}
            except ValueError as refused:
                yield {"projector": name, "from": [width, height], "refused": str(refused)}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name, file in files():
        (OUT / name).write_bytes(file)
        image = seen(file)
        (OUT / f"{name}.ppm").write_bytes(b"P6 %d %d 255\n" % image.size + image.tobytes())
    for name, file in not_read():
        (OUT / name).write_bytes(file)
    goldens = {"resampled": list(resampled()), "sizes": list(sizes()), "cuts": list(cuts()), "patches": []}
    for name, processor, options in processors():
        for width, height in SIZES:
            try:
                goldens["patches"].append(patches(name, processor, options, width, height))
            except ValueError as refused:
                print(name, width, height, refused)
    goldens["patches"] += views()
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(one) for one in part) + "\n]" for key, part in goldens.items()]
    (OUT / "goldens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
