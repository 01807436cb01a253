#!/usr/bin/env python3
"""Writes tests/data/pictures: picture files of every kind that is read, each with the pixels that Pillow makes of it (a
.ppm beside it), resampled pictures, and what transformers' image processors make of pictures of odd sizes.

Usage: make.py (in an environment with pillow before 13, which resamples some pictures vertically first; numpy, torch and
transformers)
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


def sizes():
    """What the rules make of sizes, by the published functions alone."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
    for width, height in [(1920, 1080), (4032, 3024), (3840, 2160), (48, 80), (16, 16), (144, 176), (10000, 51), (51, 10000),
                          (8000, 8000), (1, 1), (100, 20000), (4096, 4096), (4097, 4096), (256, 256), (255, 256), (1540, 1540),
                          (1541, 1540), (3000, 7), (7, 3000), (2000, 10), (28, 28), (1170, 2532)]:
        rules = {
            "qwen3vl_merger": lambda: smart_resize(height, width, 32, 65536, 16777216),
            "qwen2.5vl_merger": lambda: smart_resize(height, width, 28, 3136, 12845056),
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
    goldens = {"resampled": list(resampled()), "sizes": list(sizes()), "patches": []}
    for name, processor, options in processors():
        for width, height in SIZES:
            try:
                goldens["patches"].append(patches(name, processor, options, width, height))
            except ValueError as refused:
                print(name, width, height, refused)
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(one) for one in part) + "\n]" for key, part in goldens.items()]
    (OUT / "goldens.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
