"""Brings weights onto a volume: `python3 -m paceline_engine.pull`, in the engine's image, before the engine starts.

Whatever happens to it, a folder that engines read is complete and verified, or not there. It resumes where it was
killed, and of several at once one works and the others wait. Needs the standard library and pydantic; boto3 for s3://
alone.
"""
