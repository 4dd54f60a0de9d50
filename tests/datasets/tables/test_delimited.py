"""Tables in text files: what trackers and spreadsheets write is read as it was typed, or refused with the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellcohort.data.table import Table
from cellcohort.data.tracks import load_cells, load_tracks
from cellcohort.datasets.tables.delimited import read_delimited
from cellcohort.datasets.tables.read import read_table

COLUMNS = {"experiment": "plate", "condition": "drug", "time": "frame", "track": "track", "features": ["size"]}
TRACKMATE = {"experiment": None, "condition": None, "time": "FRAME", "track": "TRACK_ID", "features": ["MEAN_CH1"]}
HEADER = "LABEL,ID,TRACK_ID,QUALITY,POSITION_T,FRAME,MEAN_CH1"
NAMES = ["Label,Spot ID,Track ID,Quality,T,Frame,Mean intensity ch1", "Label,Spot ID,Track ID,Quality,T,Frame,Mean ch1"]
UNITS = ",,,(quality),(\u00b5s),,(counts)"
SPOTS = [f"ID{k * 9 + t},{k * 9 + t},{k},5.1,{t * 300.0},{t},{k + t / 8}" for k in range(2) for t in range(9)]
LOOSE = ["ID90,90,,1.2,0.0,0,7.5", "ID91,91,,1.2,300.0,1,7.5"]


def table(plates: list[str], conditions: list[str]) -> pd.DataFrame:
    rows = [(p, c, f"{p}{c}{k}", t, t + k / 4) for p in plates for c in conditions for k in (1, 2) for t in range(6)]
    return pd.DataFrame(rows, columns=["plate", "drug", "track", "frame", "size"])


def lines(tmp_path: Path, *rows: str, encoding: str = "utf-8", name: str = "spots.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(("\n".join(rows) + "\n").encode(encoding))
    return path


@pytest.mark.parametrize(
    ("plates", "conditions"),
    [
        (["p1", "p2"], ["None", "drugA"]),
        (["p1", "p2"], ["NA", "nan"]),
        (["007", "7"], ["mock", "drugA"]),
        (["1e3", "1000"], ["0.10", "0.1"]),
        (["True", "False"], ["on", "off"]),
        (["1", "10", "2"], ["2024-05-31", "31.5.2024"]),
        (["a, b", 'c "d"'], ["two\nlines", "\u00b5"]),
    ],
)
def test_csv_and_parquet_give_the_same_cells(tmp_path: Path, plates: list[str], conditions: list[str]) -> None:
    frame = table(plates, conditions)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    for load in (load_cells, load_tracks):
        binary, text = (load(tmp_path / f"t.{kind}", COLUMNS, 30).cells for kind in ("parquet", "csv"))
        for role, labels in (("experiment", plates), ("condition", conditions)):
            assert set(text.column(role).labels) == set(labels)
            assert binary.column(role).labels == text.column(role).labels
            assert np.array_equal(binary.column(role).codes, text.column(role).codes)
        assert np.array_equal(binary.column("track").codes, text.column("track").codes)


def test_labels_that_are_numbers_in_a_parquet_file_are_the_texts_of_the_csv_file(tmp_path: Path) -> None:
    frame = table(["1", "2", "10"], ["0.5", "2.0"]).astype({"plate": int, "drug": float})
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    for kind in ("parquet", "csv"):
        cells = load_cells(tmp_path / f"t.{kind}", COLUMNS, 30, {1: 0, 2: 0, 10: 4}).cells
        assert cells.column("experiment").labels == ("1", "2", "10"), "in the order of the numbers"
        assert cells.column("condition").labels == ("0.5", "2.0")
        assert cells.hours is not None and cells.hours[-1] == 4 + 5 / 2


def test_an_empty_label_is_missing(tmp_path: Path) -> None:
    frame = table(["p1"], ["mock", ""])
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    for kind in ("parquet", "csv"):
        with pytest.raises(ValueError, match="'drug' in 12 of 24 rows"):
            load_cells(tmp_path / f"t.{kind}", COLUMNS, 30)


def test_a_word_that_is_taken_for_a_missing_number_is_quoted(tmp_path: Path) -> None:
    frame = table(["p1"], ["mock"]).astype({"frame": object, "size": object})
    frame.loc[:1, "size"], frame.loc[3, "size"] = "NA", "None"
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=r"'size' in 3 \(the word 'NA' in 2, 'None' in 1\) of 12 rows"):
        load_tracks(tmp_path / "t.csv", COLUMNS, 30)
    frame.loc[2, "frame"] = "NA"
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=r"'frame' in 1 of 12 rows \(the word 'NA' in 1\)"):
        load_cells(tmp_path / "t.csv", COLUMNS, 30)


def test_text_among_numbers_is_quoted_with_its_line(tmp_path: Path) -> None:
    path = lines(tmp_path, "track,frame,size", "1,0,2.5", "1,1,3.5", "1,2,12 px", "1,3,9 px")
    with pytest.raises(ValueError, match=r"no number in 2 rows of 4, such as '12 px' in line 4 of spots\.csv"):
        load_tracks(path, COLUMNS | {"experiment": None, "condition": None}, 30)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("below", [[], NAMES, [*NAMES, UNITS], [UNITS], [",,,,,,"], ["-,-,-,-,-,-,-"]])
def test_the_spots_of_trackmate_are_read_as_they_are_saved(tmp_path: Path, encoding: str, below: list[str]) -> None:
    path = lines(tmp_path, HEADER, *below, *SPOTS, encoding=encoding)
    if encoding == "cp1252" and UNITS in below:
        with pytest.warns(
            UserWarning, match=rf"spots\.csv is not UTF-8 \(see line {2 + below.index(UNITS)}\) .* cp1252"
        ):
            data = load_tracks(path, TRACKMATE, 5)
    else:
        data = load_tracks(path, TRACKMATE, 5)
    assert len(data) == len(SPOTS) and data.cells.column("track").labels == ("0", "1")
    assert data.recorded([len(data) - 1])[0, 0, -1] == 2.0


def test_spots_of_no_track_are_left_out_and_counted(tmp_path: Path) -> None:
    path = lines(tmp_path, HEADER, *NAMES, UNITS, *LOOSE, *SPOTS)
    for load in (load_cells, load_tracks):
        with pytest.warns(
            UserWarning, match=r"2 of 20 rows are of no track \('TRACK_ID' is missing\), and are left out"
        ):
            data = load(path, TRACKMATE, 5)
        assert len(data) == 18 and data.cells.column("track").labels == ("0", "1")
    with pytest.raises(ValueError, match="'TRACK_ID': no value in any row, so there are no tracks"):
        load_cells(lines(tmp_path, HEADER, *LOOSE), TRACKMATE, 5)


def test_a_first_row_without_numbers_is_no_header_where_cells_may_lack_them(tmp_path: Path) -> None:
    read = read_delimited(lines(tmp_path, "plate,drug,score", "p1,mock,", "p1,(new),", "p2,drug,0.5"), ["plate"])
    assert read["drug"].tolist() == ["mock", "(new)", "drug"]
    read = read_delimited(lines(tmp_path, "plate,frame", "p1,", "p1,2"), ["plate"], numbers=["frame"])
    assert len(read) == 2 and np.isnan(read["frame"][0])


@pytest.mark.parametrize(("separator", "word"), [(";", "a semicolon"), ("\t", "a tab"), ("|", "a vertical bar")])
def test_other_separators_and_decimal_commas_are_read_and_told(tmp_path: Path, separator: str, word: str) -> None:
    rows = [f"{k}\n{t}\n{t}\n{k},{t}\n-1,5e-2".replace("\n", separator) for k in (1, 2) for t in range(6)]
    path = lines(tmp_path, "track\nframe\nwhole\nsize\nsmall".replace("\n", separator), *rows)
    told = rf"spots\.csv is read with {word} between fields and a decimal comma \(in size, small\)"
    with pytest.warns(UserWarning, match=told):
        data = load_tracks(
            path, COLUMNS | {"experiment": None, "condition": None, "features": ["size", "small", "whole"]}, 30
        )
    assert np.allclose(data.recorded([11])[0, :, -1], [2.5, -0.015, 5])
    with pytest.warns(UserWarning, match=rf"{word} between fields\.$"):
        read_delimited(lines(tmp_path, separator.join("ab"), separator.join("12")), ["a"])


def test_text_of_an_unknown_encoding_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "spots.csv"
    path.write_bytes("\n".join([HEADER, *SPOTS]).encode() + b"\nID\x81,1,2,3,4,5,6\n")
    with pytest.raises(ValueError, match=r"not UTF-8 \(see line 20\) and not cp1252 \(see line 20\)") as refused:
        load_cells(path, TRACKMATE, 5)
    assert len(str(refused.value)) < 400


def test_a_short_row_is_refused_with_its_line(tmp_path: Path) -> None:
    path = lines(tmp_path, HEADER, *SPOTS[:4], "ID4,4,0", *SPOTS[5:])
    with pytest.raises(ValueError, match=r"another number of fields than its header, .* 3 instead of 7 in line 6"):
        load_cells(path, TRACKMATE, 5)


def test_a_name_that_is_there_twice_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    path = lines(tmp_path, "track,frame,size,size,note,note", *(f"1,{t},{t},9,a,b" for t in range(4)))
    with pytest.raises(ValueError, match="has size more than once in its header"):
        load_tracks(path, COLUMNS | {"experiment": None, "condition": None}, 30)
    assert read_delimited(path, ["track"])["note.1"].tolist() == ["b"] * 4


def test_other_columns_are_numbers_unless_labels_would_be_lost(tmp_path: Path) -> None:
    path = lines(tmp_path, "a,b,c,d,e", "01,1,1.10,5,x", "2,NA,1.1,1e3,", "3,3,2,7,y")
    read = read_table(path, ["a"])
    assert read["a"].tolist() == ["01", "2", "3"] and read["c"].tolist() == ["1.10", "1.1", "2"]
    assert read["b"].isna().tolist() == [False, True, False] and read["d"].tolist() == [5, 1000, 7]
    assert read["e"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize("index", ["frame", ["track", "frame"], "size"])
def test_an_index_with_the_name_of_a_column_is_read(tmp_path: Path, index: str | list[str]) -> None:
    frame = table(["p1"], ["mock"])
    frame.set_index(index, drop=False).to_parquet(tmp_path / "t.parquet")
    for load in (load_cells, load_tracks):
        assert load(tmp_path / "t.parquet", COLUMNS, 30).cells.column("frame").labels == tuple(range(6))
    frame.set_index(index).to_parquet(tmp_path / "t.parquet")
    assert len(load_tracks(tmp_path / "t.parquet", COLUMNS, 30)) == 12


def test_an_index_that_differs_from_the_column_of_its_name_is_refused(tmp_path: Path) -> None:
    frame = table(["p1"], ["mock"])
    frame.set_index(pd.Index(frame["frame"].replace(3, 30), name="frame")).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(
        ValueError, match=r"a column of .*t\.parquet are both named 'frame', and differ in 2 of 12 rows"
    ):
        load_cells(tmp_path / "t.parquet", COLUMNS, 30)


@pytest.mark.parametrize("words", [["None", "None"], ["NA", "nan"], ["Na", "NONE"], ["-", "n.a."], ["--", "?"]])
def test_words_among_numbers_of_tracks_are_spots_of_no_track(tmp_path: Path, words: list[str]) -> None:
    loose = [row.replace(",,1.2", f",{word},1.2") for row, word in zip(LOOSE, words, strict=True)]
    path = lines(tmp_path, HEADER, *SPOTS, *loose)
    pd.read_csv(path, dtype={"TRACK_ID": str}, keep_default_na=False).to_parquet(tmp_path / "spots.parquet")
    for file in (path, tmp_path / "spots.parquet"):
        with pytest.warns(UserWarning, match=rf"2 of 20 rows are of no track .*the word '{words[0]}' in"):
            cells = load_cells(file, TRACKMATE, 5).cells
        assert cells.column("track").labels == ("0", "1")
    texts = [row.replace(",5.1", "x,5.1") for row in SPOTS]  # a name among names
    assert (
        words[0] in load_cells(lines(tmp_path, HEADER, *texts, *loose[:1]), TRACKMATE, 5).cells.column("track").labels
    )


def test_a_field_of_the_header_may_hold_a_line_break(tmp_path: Path) -> None:
    rows = [f'"day\n1",m,1,{t},{t / 2},2' for t in range(6)]
    for features, named in ((["size"], 'size,"size\nof spots"'), (["size (um\n2)"], '"size (um\n2)",n')):
        path = lines(tmp_path, '# a 5" plate, "by the lab', f"plate,drug,track,frame,{named}", *rows)
        data = load_tracks(path, COLUMNS | {"features": features}, 30)
        assert data.cells.column("experiment").labels == ("day\n1",)
        assert len(data.cells) == 6


def test_names_and_units_below_a_header_are_no_cells_where_only_labels_are_read(tmp_path: Path) -> None:
    roles = {"experiment": None, "condition": None, "track": "TRACK_ID"}
    for units in ([UNITS], [",,,,,,"], []):
        cells = Table(lines(tmp_path, HEADER, *NAMES, *units, *SPOTS), roles).cells().cells
        assert len(cells) == len(SPOTS)
        assert cells.column("track").labels == ("0", "1")
    labels = [f"{name},{n}" for n, name in enumerate(["one", "two", "three", "four", "five"])]
    wells = {"experiment": None, "condition": "name"}
    assert (
        len(Table(lines(tmp_path, "name,n", "zero,none", *labels), wells).cells().cells) == 6
    )  # one column is no proof


def test_real_hours_that_are_written_in_two_ways_are_numbers(tmp_path: Path) -> None:
    rows = [f"p,m,{track},{hours},1" for track, some in ((1, "0 0.5 1"), (2, "0.0 0.5 1.0")) for hours in some.split()]
    columns = COLUMNS | {"hours": "h"}
    path = lines(tmp_path, "plate,drug,track,h,size", *rows)
    assert np.allclose(load_cells(path, columns).cells.hours, [0, 0.5, 1] * 2)
    with pytest.raises(ValueError, match=r"'h' holds no number in 1 row of 7, such as '1:30' in line 8 of spots"):
        load_cells(lines(tmp_path, "plate,drug,track,h,size", *rows, "p,m,1,1:30,1"), columns)


def test_a_word_for_a_missing_label_of_any_column_is_quoted(tmp_path: Path) -> None:
    rows = [f"p,m,1,{t},1,{'N/A' if t == 2 else t % 2}" for t in range(6)]
    path = lines(tmp_path, "plate,drug,track,frame,size,replicate", *rows)
    with pytest.raises(ValueError, match=r"'replicate' in 1 of 6 rows \(the word 'N/A' in 1\)"):
        load_cells(path, COLUMNS, 30, also=["replicate"]).cells.column("replicate")


@pytest.mark.parametrize("first", ["plate", "# plate", "#plate", " plate"])
def test_spaces_after_commas_are_no_part_of_names_and_labels(tmp_path: Path, first: str) -> None:
    rows = [f'p 1, "mock, or ""none""" , {k}, {t}, {k + t / 4}, 00{t}' for k in (1, 2) for t in range(6)]
    rows = [row.replace('mock, or ""none""" ', 'mock ""none"""') for row in rows]
    path = lines(tmp_path, "A table, by the lab", f"{first}, drug, track, frame,size , note", *rows)
    for load in (load_cells, load_tracks):
        cells = load(path, COLUMNS, 30).cells
        assert cells.column("experiment").labels == ("p 1",)
    path = lines(tmp_path, f'{first}, drug, track, frame, "size", note', *rows)
    for load in (load_cells, load_tracks):
        cells = load(path, COLUMNS, 30, **({"also": ["note"]} if load is load_cells else {})).cells
        assert cells.column("drug").labels == ('mock "none"',) and cells.column("track").labels == ("p 1/1", "p 1/2")
        assert cells.column("note").labels == ("000", "001", "002", "003", "004", "005")
    named = COLUMNS | {"experiment": " plate"}
    if first == " plate":
        assert load_cells(path, named, 30).cells.column("experiment").labels == ("p 1",)


def test_whole_numbers_that_64_bits_would_round_stay_text(tmp_path: Path) -> None:
    path = lines(tmp_path, "a,b,c", "x,12345678901234567890,1", "y,12345678901234567891,2", "z,3,1e19")
    read = read_table(path, ["a"])
    assert read["b"].tolist() == ["12345678901234567890", "12345678901234567891", "3"] and read["c"][2] == 1e19


@pytest.mark.parametrize(
    ("start", "name", "message"),
    [
        (b"\x1f\x8b\x08\0\0\0", "t.csv", r"t\.csv is a gzip file by its content, and no text; let its name end in"),
        (b"PAR1\x15\x04", "t.csv", "is a parquet file by its content"),
        (b"PK\x03\x04", "t.tsv", "is a zip or Excel file by its content"),
        (b"ARROW1\0\0", "t.csv", "is a Feather"),
        (b"a,b\n1,2\n", "t.csv.gz", "is no gzip file, or cut off"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0", "t.csv.gz", "is no gzip file, or cut off"),
        (b"a,b\n1,2\n0\0" + b"07,3\n" * 20, "t.csv", "it holds zero bytes, and is no UTF-16"),
        (b"a\0\0\xd8\0\xd8,\0b\0\n\0", "t.csv", "it holds zero bytes, and is no UTF-16"),
    ],
)
def test_a_file_of_another_kind_than_its_name_says_is_refused(
    tmp_path: Path, start: bytes, name: str, message: str
) -> None:
    (tmp_path / name).write_bytes(start)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name, ["a"])


def test_comments_and_empty_lines_are_no_rows(tmp_path: Path) -> None:
    path = lines(tmp_path, "# by the lab", "a,b,c", "1,2,3", "# a note", "", "4,5,6", "  ", "# end", "")
    with pytest.warns(UserWarning, match="2 lines that begin with # and are no rows are left out, such as '# a note'"):
        assert read_table(path, ["a"])["b"].tolist() == [2, 5]


@pytest.mark.parametrize(("mark", "whole"), [(",", "1,024"), (".", "1.024")])
def test_marks_of_thousands_are_no_decimal_marks(tmp_path: Path, mark: str, whole: str) -> None:
    path = lines(tmp_path, "a;b", "x;999", f"y;{whole}", f"z;12{mark}000")
    with pytest.raises(ValueError, match=rf"'b' of .* others with three digits after it, such as '{whole}': whether"):
        read_table(path, ["a"], numbers=["b"])
    with pytest.warns(UserWarning, match="a semicolon"):
        assert read_table(path, ["a"])["b"].tolist() == ["999", whole, f"12{mark}000"]
    for other in (f"0{mark}024", f"1{mark}5", "1024"):
        more = lines(tmp_path, "a;b", "x;999", f"y;{whole}", f"z;{other}")
        with pytest.warns(UserWarning, match="a semicolon"):
            assert read_table(more, ["a"], numbers=["b"])["b"][1] == 1.024


@pytest.mark.parametrize(("decimal", "wrong"), [(",", "1.024,5"), (".", "1 024.5"), (",", "3.5 µm")])
def test_the_number_that_is_quoted_is_the_wrong_one(tmp_path: Path, decimal: str, wrong: str) -> None:
    numbers = [f"{k}{decimal}25" for k in range(20)]
    numbers[7] = wrong
    path = lines(tmp_path, "plate;frame;size", *(f"p;{k};{number}" for k, number in enumerate(numbers)))
    with pytest.raises(ValueError, match=f"'size' holds no number in 1 row of 20, such as '{wrong}' in line 9"):
        read_delimited(path, ["plate", "size"], numbers=["size"])


def test_a_decimal_comma_in_quotes_between_commas_is_quoted_with_its_line(tmp_path: Path) -> None:
    path = lines(tmp_path, "plate,hours", *(f'p,"{k},5"' for k in range(4)))
    with pytest.raises(ValueError, match="'hours' holds no number in 4 rows of 4, such as '0,5' in line 2 of"):
        read_delimited(path, ["plate"], numbers=["hours"])


def test_a_table_of_which_no_column_is_named_has_its_rows(tmp_path: Path) -> None:
    path = lines(tmp_path, "a,b", "1,x", "2,y")
    assert len(Table(path, {"experiment": None, "condition": None}).cells().cells) == 2


def test_an_id_that_is_written_in_two_ways_is_refused(tmp_path: Path) -> None:
    rows = [
        f"p,m,{track},{t},1" for track, some in (("1", range(3)), ("1.0", range(3, 6)), ("2", range(6))) for t in some
    ]
    path = lines(tmp_path, "plate,drug,track,frame,size", *rows)
    with pytest.raises(ValueError, match=r"'track' has '1' and '1\.0' as ids: one number written in two ways"):
        load_cells(path, COLUMNS, 30)
    with pytest.raises(ValueError, match=r"'track' has '1' and '1\.0' as ids"):
        Table(path, {"experiment": "plate", "condition": "drug", "track": "track"}).cells()


def test_timestamps_with_and_without_a_zone_are_not_mixed(tmp_path: Path) -> None:
    columns = COLUMNS | {"hours": "when"}
    for zones, hours in ((["", "", ""], [0, 1, 2]), (["Z", "+01:00", "-0100"], [1, 1, 4]), (["Z", "", "Z"], [])):
        rows = [f"p,m,{k},2024-05-31 0{k}:00:00{zone},1" for k, zone in enumerate(zones)]
        path = lines(tmp_path, "plate,drug,track,when,size", *rows)
        if hours:
            cells = load_cells(path, columns, time_unit="timestamps", positive="view").cells
            assert np.allclose(cells.hours, np.array(hours) - min(hours))
        else:
            with pytest.raises(ValueError, match="with a time zone in 2 of 3 rows and without in others, such as"):
                load_cells(path, columns, time_unit="timestamps", positive="view")


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet has a more than once among its columns; rename all but one"):
        read_table(tmp_path / "t.parquet", ["b"])


def test_columns_that_nobody_names_have_the_same_labels_in_csv_and_parquet(tmp_path: Path) -> None:
    frame = table(["p1"], ["mock"]).assign(dose="007", code=["08", "8"] * 6, lot=[f"1e{t % 3}" for t in range(12)])
    frame["lot"], frame["big"] = frame["lot"].where(frame.index > 3, "1"), "12345678901234567890"
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    names = ["dose", "code", "lot", "big"]
    for load in (load_cells, load_tracks):
        also = {"also": names} if load is load_cells else {}
        binary, text = (load(tmp_path / f"t.{kind}", COLUMNS, 30, **also).cells for kind in ("parquet", "csv"))
        for name in names:
            assert binary.column(name).labels == text.column(name).labels
            assert np.array_equal(binary.column(name).codes, text.column(name).codes)


@pytest.mark.parametrize("word", ["-", "n.d.", "unk"])
@pytest.mark.parametrize("n", [1, 3])
def test_first_rows_without_a_number_are_rows_and_no_units(tmp_path: Path, word: str, n: int) -> None:
    rows = [f"a,{c},{i}" for i, c in enumerate("bcdefg")]
    path = lines(tmp_path, "experiment,condition,h", *[f"a,z{i},{word}" for i in range(n)], *rows)
    with pytest.raises(ValueError, match=rf"'h' holds no number in {n} rows? of {n + 6}, such as '{word}' in line 2"):
        Table(path, {"hours": "h"}).cells()
