"""What a shared learner answers: one schema for the page, the API and MQTT."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field

Version = Annotated[
    int, Field(description="number of changes since the server started, with this one")
]


@dataclass
class Learning:
    """A lesson that is being learned.

    Attributes:
        label: name of its class.
        images: number of its images.
        done: how many of them are learned.
    """

    label: str
    images: int
    done: int = 0


class RunnerUp(BaseModel):
    """A less likely class."""

    label: str
    confidence: Annotated[float, Field(ge=0, le=1, description="probability")]


class PredictionResult(BaseModel):
    """What an image or a clip shows."""

    label: Annotated[str, Field(description="the most likely class")]
    confidence: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description=(
                "its probability to be right; where known is null, if one of the "
                "classes is shown"
            ),
        ),
    ]
    known: Annotated[
        bool | None,
        Field(
            description=(
                "whether the confidence is enough to name the class; if not, label is "
                "the nearest; null while it cannot tell, see missing_clips of "
                "GET /classes"
            )
        ),
    ]
    unknown: Annotated[bool, Field(description="whether known is false")]
    runners_up: Annotated[
        list[RunnerUp], Field(description="the next classes, most likely first")
    ]
    notes: Annotated[
        list[str],
        Field(
            description=(
                "what of the file was not used: of an animation all but one image"
            )
        ),
    ]


class LabelDoubt(BaseModel, from_attributes=True):
    """What speaks against the label of a lesson."""

    text: Annotated[
        str,
        Field(
            description=(
                "how many of its images looked like what, before they were learned"
            )
        ),
    ]
    label: Annotated[str, Field(description="the class given")]
    frames: Annotated[
        int, Field(description="images that were predicted before they were learned")
    ]
    as_label: Annotated[int, Field(description="those that looked like that class")]
    other: Annotated[
        str, Field(description="the class that most of the others looked like")
    ]
    as_other: Annotated[int, Field(description="those that looked like that one")]
    unknown: Annotated[
        int, Field(description="those of clips that looked like no class")
    ]


class LessonSummary(BaseModel):
    """What a lesson learned."""

    number: Annotated[
        int, Field(description="stays the same when other lessons are taken back")
    ]
    images: Annotated[
        dict[str, int], Field(description="number of images by class name")
    ]
    nothing: Annotated[int, Field(description="images that show nothing")]
    repeated: Annotated[
        int,
        Field(
            description=(
                "clips that were taught before: learned, but not counted as asked"
            )
        ),
    ]
    doubts: Annotated[
        list[LabelDoubt],
        Field(description="what speaks against the label; at most one for each class"),
    ]


class LessonEntry(LessonSummary):
    """A lesson of the list."""

    source: Annotated[
        str,
        Field(description="what was shown, such as the name of a video; may be empty"),
    ]
    when: Annotated[str, Field(description="date and time, ISO 8601 in UTC")]
    answered: Annotated[
        int, Field(description="clips that were predicted before they were learned")
    ]
    right: Annotated[
        int, Field(description="those of them whose class was named and explained them")
    ]
    unknown: Annotated[
        int, Field(description="those of them that no class taught explained")
    ]
    pictured: Annotated[
        list[int],
        Field(
            description="numbers, from 0, of the images that /picture shows in cells"
        ),
    ]
    picture: Annotated[bool, Field(description="whether /picture shows it")]
    can_undo: Annotated[bool, Field(description="whether it can be taken back")]


class LessonResult(LessonSummary):
    """A lesson that was learned, or taken back."""

    notes: Annotated[
        list[str],
        Field(
            description="what the learner gave up for its budget, and what was not used"
        ),
    ]
    version: Version


class Class(BaseModel, from_attributes=True):
    """A class that was taught."""

    name: str
    images: Annotated[int, Field(description="number of images learned")]


class ErrorRates(BaseModel):
    """How often a learner errs about what it knows, shares from 0 to 1."""

    refused: Annotated[
        float, Field(description="of images of classes taught: called unknown")
    ]
    named: Annotated[
        float, Field(description="of images of other things: called by a name")
    ]
    named_alike: Annotated[
        float,
        Field(description="the same at most, of things that look much like a class"),
    ]


class Classes(BaseModel):
    """What was taught."""

    classes: Annotated[list[Class], Field(description="in order of arrival")]
    bytes: Annotated[int, Field(description="what was learned takes")]
    budget_bytes: Annotated[int, Field(description="what it may take")]
    lessons: Annotated[int, Field(description="number of lessons")]
    can_undo: Annotated[
        bool, Field(description="whether there is a lesson to take back")
    ]
    nothing: Annotated[int, Field(description="images that were shown as nothing")]
    strict: Annotated[
        float, Field(description="confidence from which on a class is named")
    ]
    missing_clips: Annotated[
        int,
        Field(
            description=(
                "clips of known classes to be asked before learning, before it tells "
                "unknown things; 0 once it does"
            )
        ),
    ]
    rates: Annotated[
        ErrorRates | None,
        Field(
            description="how often it errs about what it knows; null without classes"
        ),
    ]
    version: Annotated[
        int, Field(description="number of changes since the server started")
    ]
    learning: Annotated[
        Learning | None, Field(description="the lesson that is being learned")
    ]


class ChangeResult(BaseModel):
    """A change was made and saved."""

    version: Version


class ForgetResult(ChangeResult):
    """A class was removed."""

    remains: Annotated[
        str, Field(description="of its images in what classes share; may be empty")
    ]
