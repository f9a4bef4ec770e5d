"""Typed settings of the commands that no other room has settings of.

Imports neither torch nor Avalanche.

A setting that a class does not explain means what it means in ``RunSettings``.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from crumb_avalanche.runs.engine_settings import EngineName
from crumb_avalanche.runs.settings import RunSettings, RuntimeName
from crumb_avalanche.system import setting_ranges as ranges

# What ``crumb learner`` does.
Action = Literal["show", "lessons", "undo", "move", "forget", "rename", "merge"]


@dataclass(frozen=True, kw_only=True)
class RunCommandSettings(RunSettings):
    """Learn a stream and report the accuracy after every experience.

    Attributes:
        engine: where several runs are done: processes of this computer, slurm or ray.
        processes: of engine processes: runs at a time, each in a process if more than
            one.
        resources: of engine slurm or ray: YAML file of what a run needs: partition,
            gpus, time, cpus, memory.
    """

    engine: EngineName = "processes"
    processes: ranges.Workers = 1
    resources: str | None = None


@dataclass
class PrepareSettings(ranges.InRange):
    """Convert a downloaded data set to the layout of its benchmark, or check a folder.

    Attributes:
        name: core50, toybox, ilab, icub, ilab_core50, cifar100, imagenet,
            tiny_imagenet, eth80, stream51, openloris_clutter (and other factors),
            clear10, clear100 or orbit.
        dataset_root: folder for the data set; give the same to crumb run.
        source: the download: an archive, or a folder of archives, videos or images.
            Without it, core50, cifar100, tiny_imagenet and stream51 are downloaded.
        check: list the missing files without changing anything.
        workers: threads; 0 takes one per core.
    """

    name: str
    dataset_root: str
    source: str | None = None
    check: bool = False
    workers: ranges.Workers = 0
    progress: bool = True


@dataclass
class StrategiesSettings(ranges.InRange):
    """List the methods of crumb run: source, what each stores, what a budget buys.

    Attributes:
        name: show this method only.
    """

    name: str | None = None


@dataclass
class BackbonesSettings(ranges.InRange):
    """List backbones: cut, map, codes, size, speed and accuracy.

    Attributes:
        names: backbones such as resnet18 or timm:vit_small_patch16_224; default a table
            of what is recorded of the built-in ones.
        measure: measure images per second on this computer.
        image_size: side of the images in pixels; default that of the backbone.
    """

    names: list[str] = field(default_factory=list)
    measure: bool = False
    image_size: ranges.ImageSize | None = None
    threads: ranges.Threads = 0


@dataclass(kw_only=True)
class NewLearnerSettings(ranges.InRange):
    """What a command that makes a learner has in common with the others.

    Attributes:
        method: for a new MODEL: recommended, rda, slda, ncm or ranpac.
        weights: for a new MODEL, or one without weights: 'torchvision' or 'timm' (both
            download), 'package' (extra weights) or a weight file; default the published
            ones of the backbone.
        backbone: for a new MODEL: squeezenet1_0, squeezenet1_1, efficientnet_lite0,
            mobilenet_v2, resnet18, small_cnn or timm:NAME; default efficientnet_lite0
            if the extra weights is installed and --weights is not given, else
            squeezenet1_0.
        cut_layer: for a new MODEL: number of frozen layers, or the name of the last one
            of timm:NAME.
        image_size: for a new MODEL: resize images to this many pixels square; default
            224, or that of timm:NAME.
        budget_bytes: for a new MODEL: most bytes of what is learned; default the size
            of the network.
        runtime: what runs the network's frozen layers: torch, compiled, onnxruntime, or
            auto for onnxruntime where it is installed.
        looks: of a new learner: sides of the central squares that it looks at, in units
            of an image's side, such as 1 for whole images, or 0.6 for the middle; 1,0.6
            by default, of which one is given up once the other is enough. Each takes
            the time of an image.
        strict: confidence from which on a class is named, such as 0.9 for fewer unknown
            things that are named and more known ones that are not recognised; MODEL
            keeps it. Default what MODEL has; crumb learner show says how often it errs.
    """

    method: str = "recommended"
    weights: str | None = None
    backbone: str | None = None
    cut_layer: ranges.Number | str | None = None
    image_size: ranges.ImageSize | None = None
    budget_bytes: ranges.Bytes | None = None
    runtime: RuntimeName = "auto"
    threads: ranges.Threads = 0
    looks: str | None = None
    strict: ranges.Strict | None = None


@dataclass
class TeachSettings(NewLearnerSettings):
    """Teach a learner what images show: makes the file MODEL or goes on with it.

    Attributes:
        model: the learner's file, such as mine.safetensors; made if absent.
        sources: images, of which those of a folder are one clip, videos, folders or
            glob patterns; without --label one folder with a folder for each class.
            --strict alone needs none: it changes this setting of MODEL.
        label: name of the class that the sources show.
        nothing: instead of sources, images of the empty scene, which is called unknown
            then.
        new_class: take names as given, also if one is nearly that of another class or
            folders look like splits.
        camera: learn from this camera instead of a source, such as 0.
        seconds: how long to watch the camera.
        without_weights: leave the network's weights out of the file, which is then
            smaller but needs --weights; false puts them in. By default an existing file
            stays as it is, and a new one has them.
        keep_pictures: keep a small picture of the lesson in the file, for crumb learner
            lessons --pictures.
        on_bad_frame: skip or raise: leave out files that cannot be read or whose
            features are not finite, or stop.
        engine: where features are computed, in shards: processes of this computer,
            slurm or ray; the learner is the same as without.
        processes: of engine processes: shards at a time, each in a process if more than
            one.
        resources: of engine slurm or ray: YAML file of what a shard needs: partition,
            gpus, time, cpus, memory.
        shards: parts of the clips that workers compute; default 16 on a cluster, else
            one for each process.
    """

    model: str
    sources: list[str] = field(default_factory=list)
    label: str | None = None
    nothing: str | None = None
    new_class: bool = False
    camera: str | None = None
    seconds: ranges.Seconds = 10.0
    without_weights: bool | None = None
    keep_pictures: bool = False
    on_bad_frame: Literal["skip", "raise"] = "skip"
    engine: EngineName = "processes"
    processes: ranges.Workers = 1
    resources: str | None = None
    shards: ranges.Count | None = None
    progress: bool = True


@dataclass
class PredictSettings(ranges.InRange):
    """Answer what images show, as a table or as a list for programs.

    Writes nothing beside its sources.

    Attributes:
        model: a learner's file.
        sources: images, videos, folders or glob patterns.
        camera: ask about a clip of this camera instead of sources, such as 0.
        seconds: length of the clip.
        boxes: JSON file of images and boxes in pixels of them, which are asked about
            one by one, such as {"photo.jpg": [[10, 20, 110, 220]]}; names are from its
            folder on.
        watch: answer for the frames of this camera, video or address (rtsp://...) as
            they come, until interrupted; prints what changes, the last answer if
            nothing does, or with --json every answer.
        json: print one JSON object a line.
        csv: print comma-separated values.
        html: also write this page of all answers, with images, runners-up and heat
            maps, mistakes first.
        strict: confidence from which on a class is named, in these answers alone, such
            as 0.9 to name less; default what MODEL has.
        weights: for a MODEL without weights: 'torchvision' or 'timm' (both download),
            'package' or a weight file.
        runtime: what runs the network's frozen layers: torch, compiled, onnxruntime, or
            auto for onnxruntime where it is installed.
    """

    model: str
    sources: list[str] = field(default_factory=list)
    camera: str | None = None
    seconds: ranges.Seconds = 10.0
    boxes: str | None = None
    watch: str | None = None
    json: bool = False
    csv: bool = False
    html: str | None = None
    strict: ranges.Strict | None = None
    weights: str | None = None
    runtime: RuntimeName = "auto"
    threads: ranges.Threads = 0


@dataclass
class ServeSettings(NewLearnerSettings):
    """Teach and ask a learner in a browser, or from other programs over HTTP.

    Attributes:
        model: the learner's file, such as mine.safetensors; made if absent, saved after
            every change.
        host: name or address of this computer to listen at; another than 127.0.0.1 is
            reached by https.
        port: port to listen at; 0 takes a free one.
        certificate: PEM file with the certificate for https; default one that this
            computer makes for --host.
        key: PEM file with its private key.
    """

    model: str
    host: str = "127.0.0.1"
    port: Annotated[int, ranges.Range(0, 2**16 - 1)] = 8000
    certificate: str | None = None
    key: str | None = None


@dataclass
class ConnectSettings(NewLearnerSettings):
    """Answer for snapshots of cameras over MQTT, and be taught and corrected over it.

    Attributes:
        service: mqtt.
        model: the learner's file, such as mine.safetensors; made if absent, saved after
            every change.
        broker: HOST or HOST:PORT.
        topic: topics of snapshots or events, such as cameras/+/snapshot or
            frigate/events; several with commas.
        name: what the topics of this learner begin with; default crumb.
        images: folder or address of the images that events name, such as
            http://HOST:5000/api/events/{id}/snapshot.jpg?crop=1
        user: for the broker.
        password_file: file with the password for the broker.
        ca: PEM file that the broker's certificate is checked with, or 'system'; turns
            TLS on.
    """

    service: Literal["mqtt"]
    model: str
    broker: str = "127.0.0.1"
    topic: str = ""
    name: str = "crumb"
    images: str | None = None
    user: str | None = None
    password_file: str | None = None
    ca: str | None = None


@dataclass
class LearnerSettings(ranges.InRange):
    """Show a learner, or change what it knows.

    Attributes:
        action: show MODEL; lessons MODEL; undo MODEL; move MODEL WRONG RIGHT; forget
            MODEL NAME; rename MODEL OLD NEW; merge A B --output C.
        model: a learner's file.
        names: class names that the action needs; for merge the other learner's file.
        lesson: number of the lesson that undo takes back (default the last one), or
            whose images alone move gives another name; see lessons.
        pictures: folder for the pictures of lessons that teach --keep-pictures kept;
            lessons writes them there.
        output: the file that merge writes.
        new_class: let rename, move and merge make a class whose name is nearly that of
            another one.
        weights: for a MODEL without weights: 'torchvision' or 'timm' (both download),
            'package' or a weight file.
    """

    action: Action
    model: str
    names: list[str] = field(default_factory=list)
    lesson: ranges.Count | None = None
    pictures: str | None = None
    output: str | None = None
    new_class: bool = False
    weights: str | None = None


@dataclass
class ExportSettings(ranges.InRange):
    """Convert a learner for other programs: one file from pixels to scores.

    It is compared with the learner.

    Attributes:
        model: a learner's file.
        to: format; onnx runs in ONNX Runtime and many others, without torch and this
            package.
        output: the file to write; default MODEL with the format's extension.
        images: photos on which the result is compared with the learner; default noise.
        weights: for a MODEL without weights: 'torchvision' or 'timm' (both download),
            'package' or a weight file.
    """

    model: str
    to: Literal["onnx"] = "onnx"
    output: str | None = None
    images: str | None = None
    weights: str | None = None
    threads: ranges.Threads = 0
