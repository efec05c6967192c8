"""Manifests: what is accepted, what is filled in, and one clear error for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from daamctl.corpora.base import modality_of
from daamctl.corpora.files import ALIKE
from daamctl.corpora.manifest import prepare
from daamctl.errors import CorpusError


def csv(folder: Path, text: str) -> Path:
    path = folder / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_smallest_manifest(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "\ufeffpath, label ,speaker\nwav/a.wav,joy,03\nwav/b.wav, anger,04\n"))
    assert rows.columns == ["utterance_id", "path", "label", "speaker", "group", "start_s", "duration_s"]
    assert rows.rows() == [
        ("a", "wav/a.wav", "joy", "03", None, 0.0, None),
        ("b", "wav/b.wav", "anger", "04", None, 0.0, None),
    ]
    assert rows.schema["group"] == pl.String
    assert rows.schema["duration_s"] == pl.Float64


def test_pieces_groups_and_further_columns(tmp_path: Path) -> None:
    text = "path,label,speaker,group,start_s,end_s,age\na.wav,x,s,g,,1.5,30\na.wav,y,s,g,1.5,,\nb.wav,x,s,g,,,7\n"
    rows = prepare(csv(tmp_path, text))
    assert rows["utterance_id"].to_list() == ["a@0ms", "a@1500ms", "b"]
    assert rows["start_s"].to_list() == [0.0, 1.5, 0.0]
    assert rows["duration_s"].to_list() == [1.5, None, None]
    assert rows["age"].to_list() == ["30", None, "7"]
    assert "end_s" not in rows.columns


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    columns = {"path": ["a.wav"], "label": ["x"], "speaker": [3], "start_s": [0.5], "end_s": [2.0], "age": [30]}
    pl.DataFrame(columns).write_parquet(path)
    assert prepare(path).rows() == [("a", "a.wav", "x", "3", None, 0.5, 1.5, 30)]


def test_equal_file_names_in_different_folders(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "path,label,speaker\nx/1.wav,a,s\ny/1.wav,b,s\ny/2.wav,b,s\n"))
    assert rows["utterance_id"].to_list() == ["x/1", "y/1", "2"]


def test_absolute_paths(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, f"path,label,speaker\n{tmp_path}/wav/a.wav,a,s\n/elsewhere/b.wav,b,s\n"))
    assert rows["path"].to_list() == ["wav/a.wav", "/elsewhere/b.wav"]


def test_a_table_of_features_is_told_what_reads_it(tmp_path: Path) -> None:
    names = ["id", "label", *(f"f{index}" for index in range(8))]
    path = csv(tmp_path, f"{','.join(names)}\na,x{',1' * 8}\n")
    with pytest.raises(CorpusError, match="f0, f1, f2 and 5 more may be features") as caught:
        prepare(path)
    assert caught.value.fix is not None
    assert f"daamctl import-vectors {path}" in caught.value.fix
    with pytest.raises(CorpusError) as caught:
        prepare(csv(tmp_path, f"{','.join(names[:-1])}\na,x{',1' * 7}\n"))
    assert "may be features" not in caught.value.message


def test_decimal_commas(tmp_path: Path) -> None:
    text = "path;label;speaker;start_s;end_s\na.wav;x;s;0,25;1,5\na.wav;y;s;2;2,75\n"
    rows = prepare(csv(tmp_path, text))
    assert rows["start_s"].to_list() == [0.25, 2.0]
    assert rows["duration_s"].to_list() == [1.25, 0.75]


def test_paths_as_speakers_mean_that_these_are_not_known(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "path,label,speaker\nx/a.wav,a,x/a.wav\nx/b.wav,b,x/b.wav\n"))
    assert rows["speaker"].to_list() == rows["utterance_id"].to_list() == ["a", "b"]
    pieces = "path,label,speaker,start_s\na.wav,a,a.wav,0\na.wav,b,a.wav,1\nb.wav,b,b.wav,0\n"
    assert prepare(csv(tmp_path, pieces))["speaker"].to_list() == ["a.wav", "a.wav", "b.wav"]  # they belong together


def test_given_ids_are_kept(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "utterance_id,path,label,speaker\nu1,a.wav,a,s\nu2,a.wav,b,s\n"))
    assert rows["utterance_id"].to_list() == ["u1", "u2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.wav,b\n", "\n  have them looked for: daamctl new NAME --from [^ ]*; or"),
        ("path,emotion\na,b\n", "lacks the columns label, speaker; it has path, emotion"),
        ("id,emotion\na,b\n", r"lacks the columns path \(or text\), label, speaker; it has id, emotion"),
        (
            "file,emotion,spk\na.wav,b,c\n",
            "\n.*rename the columns 'file' to path, 'emotion' to label, 'spk' to speaker, or name them: "
            "daamctl new NAME --from .* --columns path=file,label=emotion,speaker=spk$",
        ),
        (
            "Opinion,Stars\na,b\n",
            r"--columns path=COLUMN,label=COLUMN \(of texts: text=COLUMN,label=COLUMN; a path from ",
        ),
        (
            "id,said,all stars\n1,A fine day,2\n2,No,3\n3,It rains,2\n4,Who knows,2\n5,Yes it is,3\n6,No way,2\n",
            "by their values perhaps so: daamctl new NAME --from .* --columns 'text=said,label=all stars'$",
        ),
        (
            "premise,says,stars\nIt is so,It rains now,2\nWho is it,What is that,3\nSo it is,No it is,2\n"
            "Yes we do,No we do,2\nIt may be,It is not,3\nNo way out,A way out,2\n",
            "by their values perhaps so: .* --columns 'text=.premise. .says.,label=stars'$",
        ),
        (
            "slice,fold,class\n" + "".join(f"{at}.wav,{at % 3},{'xy'[at % 2]}\n" for at in range(6)),
            "'class' to label, or name them, by their values perhaps so: .* --columns path=slice,label=class$",
        ),
        (
            "scan,dx\n" + "".join(f"ISIC_{at},{'xy'[at % 2]}\n" for at in range(6)),
            "perhaps so: .* --columns path=scan,label=dx$",
        ),
        (  # as HAM10000 has them; people come before what is theirs
            "lesion_id,image_id,dx\n" + "".join(f"H_{at // 2},ISIC_{at},{'xy'[at % 2]}\n" for at in range(6)),
            "perhaps so: .* --columns path=image_id,label=dx,speaker=lesion_id$",
        ),
        (
            "study_id,scan,dx,Patient ID\n" + "".join(f"{at},ISIC_{at},{'xy'[at % 2]},{at // 2}\n" for at in range(6)),
            "perhaps so: .* --columns 'path=scan,label=dx,speaker=Patient ID'$",
        ),
        (  # ids are no classes, and what may as well be the class is named
            "said,shop_id,stars\n" + "".join(f"It is {at},{'ab'[at % 2]},{at % 2}\n" for at in range(6)),
            "perhaps so: .* --columns text=said,label=stars$",
        ),
        (
            "said,VALID,batch\n" + "".join(f"It is {at},{'ab'[at % 2]},{at % 3}\n" for at in range(9)),
            "perhaps so: .* --columns text=said,label=VALID$",
        ),
        (
            "said,place,mood,n\n" + "".join(f"It is {at},{'ab'[at % 2]},{'xy'[at % 2]},{at % 2}\n" for at in range(6)),
            r"perhaps so: .* --columns text=said,label=place \(or label=mood\)$",
        ),
        ("text,label,*\na,b,c\n", r"has a column named '\*'\n  rename it, or write the names of the columns"),
        ("text,label,^t.*$\na,b,c\n", r"has a column named '\^t\.\*\$'"),
        (
            "path,label\na.jp2,x\nb.jp2,y\n",
            r"2 images of a format that is not read, e.g. a.jp2 \(allowed: .png, (.*\n)*.*mogrify -format png \*.jp2",
        ),
        (
            "said,calm,angry\n" + "".join(f"It is {at},{at % 2},{1 - at % 2}\n" for at in range(6)),
            "perhaps so: .* --columns text=said$",
        ),
        (
            "file,label\na.wav,b\n",
            r"rename the column 'file' to path, or name .* --columns path=file; or write a CSV file with",
        ),
        (
            "Text,Label,split,author\na,b,c,d\n",
            "lacks the columns text, label; .*\n.* --columns text=Text,label=Label,group=split,speaker=author$",
        ),
        (
            '"3","Fears for pensions","Unions say they are disappointed"\n"4","A","B"\n',
            "it has 3, Fears for pensions, .*, which look like items\n.*write the names of the columns into the first",
        ),
        ("sentence,label\na,b\n", "lacks the column text; .*\n.* --columns text=sentence$"),
        ("review,label\na,b\n", "lacks the column text; .*\n.*rename the column 'review' to text, or name them: "),
        ("path,label,speaker\n", "has no rows"),
        ("", "cannot be read as a CSV, Parquet or JSON table"),
        ("path,label,speaker\na,x,s\nb,,s\nc, ,s\n", r"empty label in line 3 \(b\), line 4 \(c\)"),
        ("path,label,speaker\na,x,\n", r"empty speaker in line 2 \(a\)"),
        ("path,label,speaker\n,x,s\n", "empty path in line 2"),
        ("path,label,speaker\na.wav,x,s\nb.wav,x,s\na.wav,y,s\n", r"more than once in line 2 \(a.wav\), line 4"),
        ("path,label,speaker,utterance_id\na,x,s,u\nb,x,s,u\n", "or utterance_id, more than once in line 2"),
        ("path,label,speaker,utterance_id\na,x,s,u\nb,x,s,\n", "empty utterance_id in line 3"),
        ("path,label,speaker,group\na,x,s,g\nb,x,s,\n", r"empty group \(give all or none\) in line 3"),
        ("path,label,speaker,start_s,end_s\na,x,s,2,2\n", "end_s is not after start_s in line 2"),
        ("path,label,speaker,end_s\na,x,s,0\n", "end_s is not after start_s in line 2"),
        ("path,label,speaker,start_s\na,x,s,-0.1\n", "negative start_s in line 2"),
        ("path,label,speaker,start_s\na,x,s,soon\n", "start_s is not a number in line 2"),
        ("path,label,speaker,end_s\na,x,s,nan\n", "end_s is not a number in line 2"),
        ("path,label,speaker,duration_s\na,x,s,1\n", "has the column duration_s, which daamctl measures"),
        ("path,label,speaker\na,x,s,too,many\n", "cannot be read as a CSV"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message) as caught:
        prepare(csv(tmp_path, text))
    assert "list.csv" in str(caught.value)


def test_many_mistakes_are_counted(tmp_path: Path) -> None:
    lines = "".join(f"{index},,s\n" for index in range(10))
    with pytest.raises(CorpusError, match=r"line 4 \(2\) and 7 more"):
        prepare(csv(tmp_path, "path,label,speaker\n" + lines))


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    lines = ["path,label,start_s,end_s,duration_s", "a.wav,x,0,1,1", "a.wav,,0,2,1", "b.wav,y,soon,,1", "c.wav,y,2,1,1"]
    path = csv(tmp_path, "\n".join([*lines, ",y,-1,,1", ",y,,,1"]))
    with pytest.raises(CorpusError) as caught:
        prepare(path)
    assert caught.value.message.splitlines() == [
        f"{path}:",
        "    lacks the column speaker; it has path, label, start_s, end_s, duration_s",
        "    has the column duration_s, which daamctl measures on the files",
        "    empty path in line 6, line 7",
        "    empty label in line 3 (a.wav)",
        "    start_s is not a number in line 4 (b.wav)",
        "    negative start_s in line 6",
        "    end_s is not after start_s in line 5 (c.wav)",
        "    the same piece, or utterance_id, more than once in line 2 (a.wav), line 3 (a.wav)",
        "    no such file, in line 4 (b.wav), line 5 (c.wav)",
    ]
    assert caught.value.fix is not None
    assert len(caught.value.fix.splitlines()) == 3  # write it so; remove or rename; correct


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no manifest file"):
        prepare(tmp_path / "none.csv")
    (tmp_path / "bad.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(CorpusError, match="cannot be read as a CSV, Parquet or JSON table"):
        prepare(tmp_path / "bad.parquet")
    (tmp_path / "latin.csv").write_bytes("path,label,speaker\nü.wav,a,s\n".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"latin\.csv .* not UTF-8 \(line 2: byte 0xfc\); save it as UTF-8") as caught:
        prepare(tmp_path / "latin.csv")
    assert caught.value.fix is None
    assert caught.value.message.endswith(f"iconv -f latin1 -t utf-8 {tmp_path}/latin.csv > NEW")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01\x02\x03\n\x04\n", "is not a text table"),
    ],
)
def test_what_is_not_a_table_of_columns(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=re.escape(message)):
        prepare(path)


@pytest.mark.parametrize(
    ("name", "separator", "encoding"),
    [
        ("a.csv", ";", "utf-8-sig"),
        ("a.tsv", "\t", "utf-8"),
        ("a.txt", "\t", "utf-16"),
        ("b.csv", "|", "utf-8"),
        ("a.csv", ",", "utf-16-le"),
    ],
)
def test_tables_of_spreadsheets(tmp_path: Path, name: str, separator: str, encoding: str) -> None:
    lines = [["text", "label", "speaker"], ['"eins; zwei, drei\nvier"', "ü", "03"], ["no", "y", "4"]]
    text = "\n".join(separator.join(line) for line in lines)
    (tmp_path / name).write_bytes(("\ufeff" * (encoding == "utf-16-le") + text).encode(encoding))
    rows = prepare(tmp_path / name)
    assert rows.select("text", "label", "speaker").rows() == [("eins; zwei, drei\nvier", "ü", "03"), ("no", "y", "4")]


@pytest.mark.parametrize("head", ["text,label,label", "text,label, label", "text,text ,label"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, head: str) -> None:
    with pytest.raises(CorpusError, match=r"has several columns named (label|text)") as caught:
        prepare(csv(tmp_path, f"{head}\na,b,x\nc,d,y\n"))
    assert caught.value.fix == "remove or rename all but one of them"


def test_columns_without_a_name_are_kept(tmp_path: Path) -> None:  # as pandas writes its index
    assert len(prepare(csv(tmp_path, ",,text,label\n0,0,a,x\n1,1,c,y\n"))) == 2
    assert len(prepare(csv(tmp_path, ", ,text,label, \n0,0,a,x,0\n1,1,c,y,0\n"))) == 2


@pytest.mark.parametrize("name", ["text", "label"])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_several_values_in_a_row_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    rows = pl.DataFrame({"text": ["a", "b"], "label": ["x", "y"]}).with_columns(pl.concat_list(name, name))
    path = tmp_path / f"t.{kind}"
    (rows.write_json if kind == "json" else rows.write_parquet)(path)
    with pytest.raises(CorpusError, match=f"the column '{name}' has several values in a row; it must have one"):
        prepare(path)


def test_files_within_a_table_are_told(tmp_path: Path) -> None:
    pl.DataFrame({"audio": [{"bytes": b"x", "path": "a.wav"}], "label": [0]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"speaker, and 'audio' holds the files themselves; it has audio") as caught:
        prepare(tmp_path / "a.parquet")
    assert caught.value.fix == "make a pipeline of it as it is: daamctl new NAME --from " + str(tmp_path / "a.parquet")


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(
        '\ufeff{"path": "a.wav", "label": "x", "speaker": 3}\n'
        '{"path": "b.wav", "label": "y", "speaker": 4, "end_s": 2}\n'
    )
    rows = prepare(path)
    assert rows.rows() == [("a", "a.wav", "x", "3", None, 0.0, None), ("b", "b.wav", "y", "4", None, 0.0, 2.0)]
    path.write_text('{"path": "a.wav", "label": "x", "speaker": 3}\n{"path": "b.wav", "label": null, "speaker": 4}\n')
    with pytest.raises(CorpusError, match=r"empty label in line 2 \(b\.wav\)"):
        prepare(path)


@pytest.mark.parametrize(
    "content",
    [
        '{"path": {"0": "a.wav", "1": "b.wav"}, "label": {"0": "x", "1": "y"}, "speaker": {"0": 3, "1": 4}}',
        '{"a": {"path": "{data_root}/a.wav", "label": "x", "speaker": 3},'
        ' "b": {"path": "{data_root}/b.wav", "label": "y", "speaker": 4}}',
        '{"path": ["a.wav", "b.wav"], "label": ["x", "y"], "speaker": [3, 4]}',
        '{"columns": ["path", "label", "speaker"], "data": [["a.wav", "x", 3], ["b.wav", "y", 4]]}',
        '{"version": "1", "items": [{"path": "a.wav", "label": "x", "speaker": 3},\n'
        ' {"path": "b.wav", "label": "y", "speaker": 4}]}',
    ],
)
def test_other_tables_in_json(tmp_path: Path, content: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    rows = prepare(path).select("utterance_id", "path", "label", "speaker")
    assert rows.rows() == [("a", "a.wav", "x", "3"), ("b", "b.wav", "y", "4")]


def test_a_table_of_vectors_is_told(tmp_path: Path) -> None:
    table = pl.DataFrame({"id": ["a", "b"], "label": ["x", "y"], "embedding": [[1.0, 2.0], [3.0, 4.0]]})
    table.write_parquet(tmp_path / "v.parquet")
    with pytest.raises(CorpusError, match="'embedding' may be a vector") as caught:
        prepare(tmp_path / "v.parquet")
    assert caught.value.fix is not None
    assert caught.value.fix.endswith(f"write embeddings: daamctl import-vectors {tmp_path}/v.parquet")
    with pytest.raises(CorpusError, match="'embedding' may be a vector") as caught:
        prepare(csv(tmp_path, 'label,embedding\nx,"[0.5, 1.0]"\ny,"[-1.5, 2]"\n'))
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("write embeddings: daamctl import-vectors")
    nested = pl.DataFrame({"said": ["A day", "No way"] * 3, "LABELS": [["x"], ["y", "z"]] * 3, "kind": ["x", "y"] * 3})
    nested = nested.with_columns(pl.col("said") + pl.int_range(6).cast(pl.String))
    nested.write_ndjson(tmp_path / "v.jsonl")  # lists of texts are neither vectors nor labels
    with pytest.raises(CorpusError) as caught:
        prepare(tmp_path / "v.jsonl")
    assert "may be a vector" not in caught.value.message
    assert caught.value.fix is not None
    assert caught.value.fix.endswith("--columns text=said,label=kind")


@pytest.mark.parametrize("content", ["{", '{"a": [1], "b": {}}', "[" * 100_000, '{"path": ["a"], "label": []}', "3"])
def test_json_that_is_no_table(tmp_path: Path, content: str) -> None:
    (tmp_path / "list.json").write_text(content)
    with pytest.raises(CorpusError, match="cannot be read as a CSV, Parquet or JSON table"):
        prepare(tmp_path / "list.json")


def test_texts(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, 'text,label,year\n" It, ""so"" said\n",x,3\nno,y,4\n'))
    assert rows.columns == ["utterance_id", "text", "label", "speaker", "group", "year"]
    assert rows["text"].to_list() == [' It, "so" said\n', "no"]
    assert rows["speaker"].to_list() == rows["utterance_id"].to_list()
    assert rows["group"].to_list() == [None, None]
    assert modality_of(rows) == "text"


def test_ids_of_texts_depend_on_what_they_say(tmp_path: Path) -> None:
    lines = ["yes,x", "no,y", "yes,x", "yes,y"]
    first = prepare(csv(tmp_path, "\n".join(["text,label", *lines])))
    again = prepare(csv(tmp_path, "\n".join(["text,label", *reversed(lines)])))
    assert first["utterance_id"].n_unique() == 4
    assert sorted(first.rows()) == sorted(again.rows())
    assert first["utterance_id"][2] == first["utterance_id"][0] + "-2"
    assert re.fullmatch("[0-9a-f]{16}", first["utterance_id"][0])


def test_texts_with_all_columns(tmp_path: Path) -> None:
    text = "text,label,speaker,group,utterance_id\na,x,ann, Train ,u1\nb,y,bob,test,u2\nc,y,bob,VAL,u3\n"
    rows = prepare(csv(tmp_path, text)).select("utterance_id", "speaker", "group").rows()
    assert rows == [("u1", "ann", "train"), ("u2", "bob", "test"), ("u3", "bob", "dev")]


@pytest.mark.parametrize(
    ("head", "row", "told"),
    [
        ("id,text,label,split", "n1,hello,a,train", [("id", "utterance_id"), ("split", "group")]),
        ("text,label,Author", "hello,a,me", [("Author", "speaker")]),
        ("text,label,writer", "hello,a,me", [("writer", "speaker")]),
        ("text,label,speaker,author,group,fold", "hello,a,s,me,g,1", []),  # it has both
        ("id,path,label,speaker_id,speaker", "1,a.wav,a,1,s", []),  # recordings are named by their paths
        ("path,label,speaker,subset", "a.wav,a,s,test", [("subset", "group")]),
    ],
)
def test_columns_of_other_names_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, head: str, row: str, told: list[tuple[str, str]]
) -> None:
    prepare(csv(tmp_path, f"{head}\n{row}\n"))
    words = "list.csv: the column '{}' is not used; if it tells {}, rename it '{}'"
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        words.format(name, ALIKE[role][0], role) for name, role in told
    )


def test_groups_that_are_no_official_split_keep_their_names(tmp_path: Path) -> None:
    text = "text,label,group\na,x,Train\nb,y,val\nc,y,other\n"
    assert prepare(csv(tmp_path, text))["group"].to_list() == ["Train", "val", "other"]


@pytest.mark.parametrize("blank", ["", '""', '" \t"'])
def test_empty_texts_are_refused_with_their_lines(tmp_path: Path, blank: str) -> None:
    path = csv(tmp_path, f'text,label\n"two\nlines",x\n{blank},x\nb,y\n')
    with pytest.raises(CorpusError, match=r"list\.csv: empty text in line 4"):
        prepare(path)


def test_a_transcript_does_not_make_recordings_texts(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "path,label,speaker,text\na.wav,x,s,hello\n"))
    assert modality_of(rows) == "speech"
    assert rows["text"].to_list() == ["hello"]


def test_images(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "path,label\nx/1.PNG,a\ny/1.jpg,b\ny/2.webp,b\n"))
    assert rows.columns == ["utterance_id", "path", "index", "label", "speaker", "group"]
    assert rows["utterance_id"].to_list() == rows["speaker"].to_list() == ["x/1", "y/1", "2"]
    assert (rows["index"].null_count(), rows.schema["index"]) == (3, pl.Int64)
    assert modality_of(rows) == "image"


def test_one_name_with_two_suffixes(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "path,label\nx/1.png,a\nx/1.jpg,b\nx/2.jpg,b\n"))
    assert rows["utterance_id"].to_list() == ["x/1.png", "x/1.jpg", "2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,x\nb.wav,x\nc.gif,y\n", r"not an image, unlike the other files, in line 3 \(b\.wav\)"),
        ("path,label\na.wav,x\nb.wav,x\nc.gif,y\n", r"an image, unlike the other files, in line 4 \(c\.gif\)"),
        ("path,label\na.png,x\na.png,y\n", r"more than once in line 2 \(a\.png\), line 3"),
        ("path,label,speaker\na.png,x,s\nb.png,y,\n", r"empty speaker in line 3 \(b\.png\)"),
        ("path,label,index\na.png,x,0\n", "has the column index, but lists images"),
        ("path\na.png\n", "lacks the column label; it has path"),
        ("file_name,class\na.png,x\n", "'file_name' to path, 'class' to label, or name them: "),
    ],
)
def test_mistakes_with_images(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        prepare(csv(tmp_path, text))


def files(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_folder_of_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = files(tmp_path / "pets", "cat/1.png", "cat/deep/2.JPG", "dog/1.png", ".git/x/1.png", "dog/.hidden.png")
    files(root, "dog/notes.txt", "readme.md")
    rows = prepare(root)
    assert rows.rows() == [
        ("cat/1", "cat/1.png", None, "cat", "cat/1", None),
        ("2", "cat/deep/2.JPG", None, "cat", "2", None),
        ("dog/1", "dog/1.png", None, "dog", "dog/1", None),
    ]
    assert "left out 1 file without an image: dog/notes.txt" in caplog.text


def test_folder_of_parts(tmp_path: Path) -> None:
    root = files(tmp_path, "train/cat/1.png", "train/train/2.png", "test/cat/1.png", "val/cat/3.png")
    found = prepare(root).select("path", "label", "group").rows()
    assert sorted(found) == [
        ("test/cat/1.png", "cat", "test"),
        ("train/cat/1.png", "cat", "train"),
        ("train/train/2.png", "train", "train"),
        ("val/cat/3.png", "cat", "dev"),
    ]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    rows = prepare(files(tmp_path, "train/1.png", "car/2.png"))
    assert rows.select("label", "group").rows() == [("car", None), ("train", None)]


def test_folders_without_classes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="empty has no images"):
        prepare(tmp_path / "empty")
    with pytest.raises(CorpusError, match=r"2 images outside the sub-folders of the classes: .*flat/a\.png"):
        prepare(files(tmp_path / "flat", "a.png", "b.png"))
    with pytest.raises(CorpusError, match=r"1 image outside the sub-folders of the classes: .*train/a\.png"):
        prepare(files(tmp_path / "parts", "train/a.png", "test/x/a.png"))


def test_unknown_kind_of_table(tmp_path: Path) -> None:
    files(tmp_path, "list.xlsx")
    with pytest.raises(CorpusError, match=r"xlsx is of an unknown kind \(allowed: \.csv, \.tsv, \.txt, \.parquet"):
        prepare(tmp_path / "list.xlsx")
