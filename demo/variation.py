"""Vary a question as people would type it: other openings, typos, missing words, another case."""

from __future__ import annotations

import random
import re

_OPENERS = (
    ("what is ", ("what's ", "whats ", "define ", "explain ", "tell me about ", "describe ", "so what is ")),
    ("what are ", ("explain ", "tell me about ", "describe ", "define ", "what's ")),
    (
        "how do i ",
        ("how can i ", "how to ", "how would i ", "how should i ", "what do i do to ", "how do you ", ""),
    ),
    ("how does ", ("explain how ", "tell me how ", "in what way does ", "how exactly does ", "how will ")),
    ("how is ", ("tell me how is ", "in what way is ", "explain how is ")),
    ("why does ", ("explain why ", "what is the reason that ", "how come ", "why would ")),
    ("why is ", ("explain why ", "what is the reason that ", "how come ")),
    ("can i ", ("is it possible to ", "could i ", "am i able to ", "may i ")),
    ("does kvasir ", ("can kvasir ", "will kvasir ", "does it ", "do you know if kvasir does ")),
    ("what does ", ("tell me what ", "explain what ", "what exactly does ")),
    ("what happens ", ("what will happen ", "what would happen ", "tell me what happens ")),
    ("show me ", ("give me ", "i want to see ", "can you show me ")),
    ("tell me ", ("please tell me ", "could you tell me ", "i want to hear ")),
)
# What is a pod? -> pod
_SUBJECT = re.compile(r"^(?:what is|what are|explain|tell me about) ((?:an? |the )?[^,]{3,32}?)\??$", re.IGNORECASE)
_AROUND = (
    "{}", "{}", "{}?", "the term {}", "explain {} to me", "could you explain {} to me?", "explain what {} is",
    "what {} is", "can you explain what {} is?", "what is meant by {}?", "what do you know about {}?",
    "what exactly is {}?", "what does {} mean?", "what is {} good for?", "what is {} all about?",
    "what actually is {}?", "i want to know what {} is",
)  # fmt: skip
# How do I install Kvasir? -> installing kvasir
_TASK = re.compile(r"^how do i (\w+?)(e?) (.{3,32}?)\??$", re.IGNORECASE)
_WORDS = {
    "kubernetes": ("k8s", "kube", "a cluster"), "kvasir": ("it", "this"), "llm": ("large language model", "LLMs"),
    "requests": ("calls", "request"), "request": ("requests", "call"), "engine": ("engines", "engine pod"),
    "engines": ("engine",), "dies": ("crashes", "goes down", "fails", "breaks"), "crashes": ("dies", "fails"),
    "run": ("use", "start"), "start": ("run", "launch"), "use": ("work with", "try"), "install": ("set up", "get"),
    "deploy": ("run", "install"), "mean": ("stand for", "say"), "difference": ("differences",), "pod": ("pods",),
    "support": ("have", "offer"), "model": ("models",), "models": ("model",), "token": ("tokens",),
    "need": ("require",), "see": ("find", "look at"), "set": ("change", "configure"), "change": ("set",),
    "stop": ("end", "kill"),
}  # fmt: skip
_PREFIXES = (
    "please ", "hey, ", "hi, ", "ok, ", "and ", "so, ", "quick question: ", "can you tell me ", "i want to know ",
)  # fmt: skip
_SUFFIXES = (
    " please", " thanks", "??", " ?", "!", "...", " :)", " exactly?", " in short?", " in kvasir?", " kvasir",
    " actually?",
)  # fmt: skip
_FILLERS = {"the", "a", "an", "does", "do", "is", "of", "to", "i", "my"}


def vary(rng: random.Random, question: str) -> str:
    """Return a question as a person in a hurry would type it; one in four stays as it is."""
    if rng.random() < 0.25:
        return question
    text = question
    subject = _SUBJECT.match(question)
    if subject and rng.random() < 0.4:
        text = _around_subject(rng, subject[1])
    elif rng.random() < 0.3:
        text = _other_opener(rng, text)
    if rng.random() < 0.2:
        text = _other_word(rng, text)
    if rng.random() < 0.4:
        text = text.rstrip("?.!")
    if rng.random() < 0.12:
        text = rng.choice(_PREFIXES) + text[:1].lower() + text[1:]
    if rng.random() < 0.1:
        text = text.rstrip("?.!") + rng.choice(_SUFFIXES)
    if rng.random() < 0.15:
        words = text.split()
        text = " ".join(w for w in words if w.lower() not in _FILLERS or rng.random() < 0.5) or text
    if rng.random() < 0.04:
        text = " ".join(rng.sample(text.split(), len(text.split())))
    if rng.random() < 0.25:
        text = _typo(rng, text)
    if rng.random() < 0.4:
        text = text.lower()
    return text.upper() if rng.random() < 0.04 else text


def vary_end(rng: random.Random, question: str) -> str:
    """Vary how a question begins and ends, and leave the names and numbers in it as they are."""
    if rng.random() < 0.3:
        question = question.rstrip("?.")
    if rng.random() < 0.1:
        question = rng.choice(("Please ", "Hi, ", "OK. ", "Can you help me? ")) + question
    return question + rng.choice(("",) * 8 + (" please", "!"))


def _around_subject(rng: random.Random, subject: str) -> str:
    bare = re.sub(r"^(an?|the) ", "", subject)
    text = rng.choice(_AROUND).format(rng.choice((subject, bare)))
    return text[0].upper() + text[1:]


def _other_opener(rng: random.Random, text: str) -> str:
    task = _TASK.match(text)
    if task and rng.random() < 0.15:
        return f"{task[1]}ing {task[3]}"
    for opener, others in _OPENERS:
        if text.lower().startswith(opener):
            other = rng.choice(others) + text[len(opener) :]
            return other[:1].upper() + other[1:]
    return text


def _other_word(rng: random.Random, text: str) -> str:
    words = text.split(" ")
    places = [i for i, word in enumerate(words) if word.lower().strip("?") in _WORDS]
    if len(words) < 5:  # "Can you explain it?" would say too little
        return text
    if places:
        place = rng.choice(places)
        end = "?" if words[place].endswith("?") else ""
        words[place] = rng.choice(_WORDS[words[place].lower().strip("?")]) + end
    return " ".join(words)


def _typo(rng: random.Random, text: str) -> str:
    places = [i for i in range(1, len(text) - 1) if text[i - 1 : i + 2].isalpha()]
    if not places:
        return text
    i = rng.choice(places)
    return rng.choice(
        (
            text[:i] + text[i + 1 :],  # left out
            text[:i] + text[i] + text[i:],  # doubled
            text[:i] + text[i + 1] + text[i] + text[i + 2 :],  # swapped
            text[:i] + rng.choice("aeioustrnl") + text[i + 1 :],  # another letter
        )
    )
