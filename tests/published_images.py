"""Small files in the published formats of images and music, with random values."""

import gzip
import io
import struct
import tarfile
import wave

import numpy as np
import numpy.typing as npt
from PIL import Image

Images = npt.NDArray[np.uint8]
CIFAR10 = [
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
]


def random_images(n, *shape, seed=0):
    """Images (N, H, W, C)."""
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def planes(images):
    """Rows (N, C * H * W): all red values, then green, then blue."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar10(folder, images, per_batch):
    """The binary version of CIFAR-10: five training batches, then a test batch.

    The label of an image is the number of its batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    contents = {"batches.meta.txt": "\n".join([*CIFAR10, "", ""]).encode()}
    for i, name in enumerate(names):
        rows = planes(images[i * per_batch : (i + 1) * per_batch])
        contents[name] = np.pad(rows, ((0, 0), (1, 0)), constant_values=i).tobytes()
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def idx(images):
    """The content of a file of MNIST, of grey images (N, H, W, 1)."""
    return struct.pack(">4I", 0x803, *images.shape[:3]) + images.tobytes()


def idx_labels(labels):
    """The content of a file of the labels of MNIST."""
    return struct.pack(">2I", 0x801, len(labels)) + bytes(labels)


def write_packed(path, content):
    """Write bytes, compressed if the name ends so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_pictures(folder, labelled):
    """A folder of png files per class, of images (N, H, W, C)."""
    for name, images in labelled.items():
        (folder / name).mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image.squeeze()).save(folder / name / f"{i:04}.png")


def wav(samples, rate):
    """The content of a file of 16-bit samples (N, channels) from -1 to 1."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.rint(samples * 32767).astype("<i2").tobytes())
    return content.getvalue()


def write_wav(path, samples, rate):
    write_packed(path, wav(samples, rate))
